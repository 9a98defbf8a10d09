//! Programs of the set-ups, by their names in the shell: `python3 -c "$NAME"`.

/// All of them.
pub(super) const ALL: [(&str, &str); 8] = [
    ("LISTEN", LISTEN),
    ("SLOW", SLOW),
    ("CONNECT", CONNECT),
    ("OPEN", OPEN),
    ("TAP", TAP),
    ("FLOOD", FLOOD),
    ("LONG", LONG),
    ("STRANGER", STRANGER),
];

/// A program that listens, and sleeps before it accepts.
const LISTEN: &str = "\
import socket,sys,time\n\
s=socket.socket()\n\
s.setsockopt(1,2,1)\n\
s.bind(('0.0.0.0',7000))\n\
s.listen(4)\n\
time.sleep(float(sys.argv[1])) # waits: it is late\n\
k=[]\n\
while 1: k.append(s.accept())\n\
";
/// A program that accepts a connection, and sleeps each time before it reads some of it.
const SLOW: &str = "\
import socket,sys,time\n\
s=socket.socket()\n\
s.setsockopt(1,2,1)\n\
s.bind(('0.0.0.0',7000))\n\
s.listen(4)\n\
c,_=s.accept()\n\
while 1:\n\
\x20time.sleep(float(sys.argv[1])) # waits: it is slow\n\
\x20c.recv(20000)\n\
";
/// A program that opens connections to the host and ends.
const CONNECT: &str = "\
import socket,sys\n\
k=[]\n\
for i in range(int(sys.argv[1])):\n\
\x20s=socket.socket()\n\
\x20s.setblocking(False)\n\
\x20s.connect_ex(('10.98.0.1',7000))\n\
\x20k.append(s)\n\
__import__('time').sleep(2) # waits: they stay a while\n\
";
/// A program that opens connections to the guest and keeps them.
const OPEN: &str = "\
import socket,sys,time\n\
k=[]\n\
while len(k)<int(sys.argv[1]):\n\
\x20try: k.append(socket.create_connection(('10.98.0.2',7000)))\n\
\x20except OSError: time.sleep(.1) # waits: for the listener\n\
time.sleep(60) # waits: it keeps them\n\
";
/// A program behind a TAP device that sleeps before it reads a frame.
const TAP: &str = "\
import fcntl,struct,os,sys,time\n\
f=os.open('/dev/net/tun',os.O_RDWR)\n\
fcntl.ioctl(f,0x400454ca,struct.pack('16sH',b'tap0',0x1002))\n\
while 1:\n\
\x20time.sleep(float(sys.argv[1])) # waits: it is slow\n\
\x20os.read(f,9000)\n\
";
/// Two thousand datagrams a second.
const FLOOD: &str = "\
import socket,sys,time\n\
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
while 1:\n\
\x20for i in range(20):\n\
\x20 try: s.sendto(b'x'*100,(sys.argv[1],9))\n\
\x20 except OSError: pass\n\
\x20time.sleep(0.01) # waits: so it keeps to its rate\n\
";
/// Fifty datagrams a second of 1400 bytes that may not be fragmented, whatever ICMP says.
const LONG: &str = "\
import socket,sys,time\n\
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
s.setsockopt(0,10,3)\n\
while 1:\n\
\x20time.sleep(0.02) # waits: so it keeps to its rate\n\
\x20try: s.sendto(b'x'*1400,(sys.argv[1],9))\n\
\x20except OSError: pass\n\
";
/// Fifty packets a second from an address that neither end has.
const STRANGER: &str = "\
import socket,struct,sys,time\n\
s=socket.socket(socket.AF_INET,socket.SOCK_RAW,255)\n\
a=socket.inet_aton\n\
h=struct.pack('!BBHHHBBH4s4s',69,0,28,0,0,63,17,0,a('10.96.0.9'),a(sys.argv[1]))\n\
while 1:\n\
\x20time.sleep(0.02) # waits: so it keeps to its rate\n\
\x20s.sendto(h+struct.pack('!HHHH',9,9,8,0),(sys.argv[1],9))\n\
";
