# Programs of the hosts in doctor/fixtures whose `made` names them: `python3 -c "$NAME"`. To be
# read by a shell: `. doctor/tests/saved/programs.sh`.

# A program that listens, and sleeps before it accepts.
export LISTEN='import socket,sys,time
s=socket.socket()
s.setsockopt(1,2,1)
s.bind(("0.0.0.0",7000))
s.listen(4)
time.sleep(float(sys.argv[1])) # waits: it is late
k=[]
while 1: k.append(s.accept())'
# A program that accepts a connection, and sleeps each time before it reads some of it.
export SLOW='import socket,sys,time
s=socket.socket()
s.setsockopt(1,2,1)
s.bind(("0.0.0.0",7000))
s.listen(4)
c,_=s.accept()
while 1:
 time.sleep(float(sys.argv[1])) # waits: it is slow
 c.recv(20000)'
# A program that opens connections to the host and ends.
export CONNECT='import socket,sys
k=[]
for i in range(int(sys.argv[1])):
 s=socket.socket()
 s.setblocking(False)
 s.connect_ex(("10.98.0.1",7000))
 k.append(s)
__import__("time").sleep(2) # waits: they stay a while'
# A program that opens connections to the guest and keeps them.
export OPEN='import socket,sys,time
k=[]
while len(k)<int(sys.argv[1]):
 try: k.append(socket.create_connection(("10.98.0.2",7000)))
 except OSError: time.sleep(.1) # waits: for the listener
time.sleep(60) # waits: it keeps them'
# A program behind a TAP device that sleeps before it reads a frame.
export TAP='import fcntl,struct,os,sys,time
f=os.open("/dev/net/tun",os.O_RDWR)
fcntl.ioctl(f,0x400454ca,struct.pack("16sH",b"tap0",0x1002))
while 1:
 time.sleep(float(sys.argv[1])) # waits: it is slow
 os.read(f,9000)'
# Two thousand datagrams a second.
export FLOOD='import socket,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while 1:
 for i in range(20):
  try: s.sendto(b"x"*100,(sys.argv[1],9))
  except OSError: pass
 time.sleep(0.01) # waits: so it keeps to its rate'
# Fifty datagrams a second of 1400 bytes that may not be fragmented, whatever ICMP says.
export LONG='import socket,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
s.setsockopt(0,10,3)
while 1:
 time.sleep(0.02) # waits: so it keeps to its rate
 try: s.sendto(b"x"*1400,(sys.argv[1],9))
 except OSError: pass'
# Fifty packets a second from an address that neither end has.
export STRANGER='import socket,struct,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_RAW,255)
a=socket.inet_aton
h=struct.pack("!BBHHHBBH4s4s",69,0,28,0,0,63,17,0,a("10.96.0.9"),a(sys.argv[1]))
while 1:
 time.sleep(0.02) # waits: so it keeps to its rate
 s.sendto(h+struct.pack("!HHHH",9,9,8,0),(sys.argv[1],9))'
