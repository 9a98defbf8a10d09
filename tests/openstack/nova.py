"""Acts as Nova, libvirt and Neutron's operators on packaging/openstack; see tests/openstack/run.

usage: nova.py PROGRAM FOLDER
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback

import os_vif

import cloud
from cloud import Agent, Machine, Neutron, Ringway, Switch, step, wait_for
from neutron_lib.api.definitions import portbindings
from ringway_neutron import agent as agents
from ringway_neutron import vifs


def binding(neutron, network, far):
    step("ports are bound to sockets that QEMU creates")
    port = neutron.port(network)
    folder = os.path.join(neutron.sockets, "vhu" + port["id"][:11])
    assert port[portbindings.VIF_TYPE] == "vhostuser", port
    expected = {"connectivity": "l2", "port_filter": False, "vhostuser_mode": "server",
                "vhostuser_socket": folder}
    details = dict(port[portbindings.VIF_DETAILS])
    bound_by = details.pop("bound_drivers", {"0": "ringway"})
    assert details == expected and bound_by == {"0": "ringway"}, port
    for what in (neutron.port(network, owner="network:dhcp"), neutron.port(far)):
        assert what[portbindings.VIF_TYPE] == "binding_failed", what
    return port


def first_start(neutron, ringway, program, ports):
    step("Nova plugs, QEMU waits at its socket, the agent serves it, Nova lets the machine run")
    machines = [Machine(neutron, program, port) for port in ports]
    for machine in machines:
        machine.plug()
        assert neutron.status(machine.port) == "DOWN" and not ringway.vif(machine.name)
        machine.start()
        neutron.wait_for_status(machine.port, "ACTIVE")
        vif = ringway.vif(machine.name)
        said = [vif[key] for key in ("mac", "vlan", "locking_mode", "allowed_ips", "max_queues")]
        expected = [machine.port["mac_address"], 107, "locked", [machine.address], 4]
        assert said == expected and vif["virtio"]["socket"] == machine.vif.path, vif
        machine.run()
    machines[0].ping(machines[1])
    for machine in machines:
        wait_for("two queues", lambda: len(ringway.vif(machine.name)["queues"]) == 2)
    return machines


def changes(neutron, ringway, agent, a, b):
    step("what Neutron changes, a connected machine gets, without a new vif")
    host, verbs = agent.loop.mgr.host, []
    call = host.call

    def recording(*words):
        verbs.append(words[1])
        return call(*words)
    host.call = recording
    pairs = [{"ip_address": "10.77.7.200", "mac_address": "fa:16:3e:00:00:99"},
             {"ip_address": "10.9.0.0/24"}]
    neutron.update(a.port, allowed_address_pairs=pairs)
    ips = {a.address, "10.77.7.200", "10.9.0.0/24"}
    wait_for("further addresses", lambda: set(ringway.vif(a.name)["allowed_ips"]) == ips
             and ringway.vif(a.name)["allowed_macs"] == ["fa:16:3e:00:00:99"])
    neutron.update(a.port, admin_state_up=False)
    wait_for("a link that is down", lambda: ringway.vif(a.name)["limits"]["link_down"])
    neutron.update(a.port, admin_state_up=True, allowed_address_pairs=[])
    wait_for("a link that is up", lambda: not ringway.vif(a.name)["limits"]["link_down"]
             and ringway.vif(a.name)["allowed_ips"] == [a.address])
    neutron.wait_for_status(a.port, "ACTIVE")
    assert set(verbs) == {"list", "set"}, verbs
    a.ping(b)


def restarted_agent(neutron, ringway, agent, a, b):
    step("the agent is killed: machines stay; the next one finds who came and who went")
    agent.kill()
    a.ping(b)
    b.end()
    assert ringway.vif(b.name), "no agent has removed it"
    agent = Agent()
    wait_for("no vif of a machine that has ended", lambda: not ringway.vif(b.name))
    agent.kill()
    b.plug()
    b.start()
    agent = Agent()
    neutron.wait_for_status(b.port, "ACTIVE")
    b.run()
    a.ping(b)
    return agent


def vanishing(neutron, ringway, a, b):
    step("a machine is killed and leaves its socket; it starts again")
    b.kill()
    assert stat.S_ISSOCK(os.stat(b.vif.path).st_mode)
    wait_for("no vif of a machine that was killed", lambda: not ringway.vif(b.name))
    neutron.wait_for_status(b.port, "DOWN")
    b.start()
    neutron.wait_for_status(b.port, "ACTIVE")
    b.run()
    a.ping(b)
    step("ringway's host is stopped and started: its vifs are made again")
    ringway.stop()
    ringway.start()
    wait_for("both vifs", lambda: ringway.vif(a.name) and ringway.vif(b.name))
    a.ping(b)
    step("a machine ends")
    b.end()
    neutron.wait_for_status(b.port, "DOWN")
    assert not ringway.vif(b.name)
    step("a port is deleted while its machine runs")
    neutron.plugin.delete_port(neutron.context, a.port["id"])
    wait_for("no vif of a deleted port", lambda: not ringway.vif(a.name))
    a.end()


def strange_sockets(neutron, ringway, agent, network, program):
    step("strange names in the directory of sockets, and vifs of others, are passed over")
    other = ["--vhost", os.path.join(neutron.sockets, "vm1")]
    subprocess.run([program, "vif", "add", "vm1", *other], check=True)
    listeners = []
    for name in ("vhu$(touch x)", "vhu12345678-9;", "vhu12345678-90.x", "vhu 12345678-90", "other",
                 "vhuZZZZZZZZ-00"):
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(os.path.join(neutron.sockets, name))
    machine = Machine(neutron, program, neutron.port(network))
    machine.plug()
    machine.start()
    # All that was there before it is done when it is served.
    neutron.wait_for_status(machine.port, "ACTIVE")
    assert set(ringway.vifs()) == {"vm1", machine.name}, ringway.vifs().keys()
    assert agent.loop.mgr.get_all_devices() == {machine.vif.vif_name}
    machine.end()


def on_open_vswitch(neutron, switch, far, program):
    step("with OVN's bridge, machines have ports there by which OVN knows them")
    agent = Agent("br-int")
    neutron.wait_for_agent("br-int")
    # OVN knows which physical networks it reaches.
    machine = Machine(neutron, program, neutron.port(far))
    machine.plug()
    machine.start()
    neutron.wait_for_status(machine.port, "ACTIVE")
    for key, value in (("iface-id", machine.port["id"]), ("iface-status", "active"),
                       ("attached-mac", machine.port["mac_address"])):
        wait_for(key, lambda: switch.id(machine.name, key) == value)
    assert switch.ask("list-ports", "br-int") == machine.name
    machine.end()
    wait_for("no port", lambda: switch.ask("list-ports", "br-int") == "")
    neutron.wait_for_status(machine.port, "DOWN")
    agent.kill()


DETAILS = {
    "port_id": "01234567-89ab-cdef-0123-456789abcdef", "mac_address": "FA:16:3E:00:00:01",
    "fixed_ips": [{"ip_address": "10.0.0.5"}, {"ip_address": "fd77::5"}], "network_type": "vlan",
    "segmentation_id": 7, "mtu": 1450, "admin_state_up": True, "port_security_enabled": True,
}


def recorder(folder, body):
    """A program that writes down its arguments, one a line."""
    path = folder + "/recorder"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {folder}/said\n{body}\n')
    os.chmod(path, 0o755)
    return path


def said(folder):
    with open(folder + "/said", encoding="utf-8") as file:
        lines = file.read().splitlines()
    os.unlink(folder + "/said")
    return lines


def arguments(folder):
    step("arguments are lists of checked words")
    program = recorder(folder, 'case "$2" in list) echo "[]" ;; esac')
    vifs.Host(program, "/run/vms", 8).ensure(DETAILS)
    socket = "--vhost=/run/vms/vhu01234567-89"
    start = ["vif", "list", "--json", "vif", "add", "vhu01234567-89", socket, "--queues=8",
             "--mac=fa:16:3e:00:00:01", '--set=locking-mode="locked"',
             '--set=allowed-ips=["10.0.0.5", "fd77::5"]', "--set=allowed-macs=[]"]
    assert said(folder) == start + ["--set=vlan=7", "--set=mtu=1450"]
    step("on OVN's bridge the port is there before the machine's driver")
    geneve = {**DETAILS, "network_type": "geneve", "segmentation_id": 70000}
    vifs.Host(program, "/run/vms", 8, "br-int").ensure(geneve)
    ours = [f'--set=iface-id="{DETAILS["port_id"]}"', '--set=bind="plugged"']
    assert said(folder) == start[:9] + ["--bridge=br-int"] + start[9:] + ours
    vifs.Host(program, "/run/vms", 8).ensure({**DETAILS, "port_security_enabled": False})
    assert '--set=locking-mode="unlocked"' in said(folder)
    for key, value in (
        ("port_id", "x; reboot"), ("port_id", "-" * 36), ("mac_address", "$(reboot)"),
        ("mac_address", "fa:16:3e:00:00:01\n"), ("fixed_ips", [{"ip_address": "10.0.0.5 --x"}]),
        ("segmentation_id", "7; x"), ("segmentation_id", 0), ("network_type", "vxlan"),
        ("allowed_address_pairs", [{"ip_address": "10.0.0.9", "mac_address": "`x`"}]),
    ):
        try:
            vifs.Host(program, "/run/vms", 8).ensure({**DETAILS, key: value})
        except vifs.Refused as reason:
            assert len(str(reason)) < 300, reason
        else:
            raise AssertionError(f"{key} {value!r} was accepted")
        assert not os.path.exists(folder + "/said") or "add" not in said(folder), key


def refusals(folder):
    step("a program that hangs is ended; errors name the cause")
    vifs.PATIENCE_S = 1
    for body, expected in (
        ("exec sleep 1000", "no response within 1 s: see `ringway vif list`"),
        ("echo 'no host runs in /x: start one' >&2; exit 1", "no host runs in /x: start one"),
        ("exit 3", "exit status 3"),
    ):
        reason = refused(lambda: vifs.Host(recorder(folder, body), "/x", 1).vifs())
        assert reason.endswith(expected), reason
    reason = refused(lambda: vifs.Host("/nonexistent", "/x", 1).vifs())
    assert "/nonexistent" in reason and reason.endswith(": set `program` in [ringway]"), reason
    os.unlink(folder + "/said")


def refused(call):
    try:
        call()
    except vifs.Refused as reason:
        return str(reason)
    raise AssertionError("it was not refused")


def storms(folder):
    step("what fails is not tried in each turn; of others' ports nothing is asked")
    options = type("Options", (), {"socket_dir": "/x", "integration_bridge": None})
    agents.RETRY_S = 3600
    manager = agents.Manager(vifs.Host(recorder(folder, "exit 1"), "/x", 1), options)
    stamps = [manager.get_devices_modified_timestamps({"tap01234567-89"}) for _ in range(9)]
    assert all(stamp == stamps[0] for stamp in stamps), stamps
    assert said(folder) == ["vif", "list", "--json"]
    manager.setup_arp_spoofing_protection("tap01234567-89", DETAILS)
    assert not manager.plug_interface("n", None, "tap01234567-89", "compute:nova")
    manager.not_before.clear()
    for details in ({}, {**DETAILS, "mac_address": None}, {**DETAILS, "fixed_ips": [7]}):
        manager.setup_arp_spoofing_protection("tap01234567-89", details)
        assert not manager.plug_interface("n", None, "tap01234567-89", "compute:nova")
    assert not os.path.exists(folder + "/said")
    callbacks = agents.Callbacks(None, type("Agent", (), {"mgr": manager}), None)
    callbacks.port_delete(None, port_id=DETAILS["port_id"])
    assert not os.path.exists(folder + "/said")


def process(folder, neutron):
    step("the agent as a process: --help, a wrong setting, SIGTERM while Neutron does not respond")
    program = os.path.join(os.path.dirname(sys.executable), "neutron-ringway-agent")
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--ringway-socket_dir" in shown and "Where QEMU creates its sockets" in shown, shown
    config = ["--config-file", neutron.file]
    done = subprocess.run([program, *config, "--ringway-socket_dir", "/a b"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and "socket_dir '/a b' is not of the form" in done.stderr, done
    log = folder + "/agent.log"
    running = subprocess.Popen([program, *config, "--log-file", log], start_new_session=True)
    wait_for("the loop of the agent", lambda: os.path.exists(log) and "loop" in open(log).read())
    running.send_signal(signal.SIGTERM)
    assert running.wait(cloud.SOON_S) == 0
    assert "Ringway agent ends" in open(log).read()


def main():
    program, folder = sys.argv[1:]
    os_vif.initialize()
    arguments(folder)
    refusals(folder)
    vifs.PATIENCE_S = cloud.SOON_S
    storms(folder)
    agents.RETRY_S = 2
    switch = Switch(folder) if shutil.which("ovs-vswitchd") else None
    ringway = Ringway(folder, program)
    neutron = Neutron(folder, program)
    process(folder, neutron)
    network = neutron.network("physnet1", 107, "10.77.7.0/24")
    far = neutron.network("physnet2", 108, "10.77.8.0/24")
    assert neutron.port(network)[portbindings.VIF_TYPE] == "binding_failed", "no agent is there"
    agent = Agent()
    neutron.wait_for_agent()
    ports = [binding(neutron, network, far), neutron.port(network)]
    a, b = first_start(neutron, ringway, program, ports)
    changes(neutron, ringway, agent, a, b)
    agent = restarted_agent(neutron, ringway, agent, a, b)
    vanishing(neutron, ringway, a, b)
    strange_sockets(neutron, ringway, agent, network, program)
    agent.kill()
    if switch:
        on_open_vswitch(neutron, switch, far, program)
    else:
        step("SKIPPED: ports on Open vSwitch: ovs-vswitchd is not installed")
    ringway.stop()
    step("passed")


if __name__ == "__main__":
    began = time.monotonic()
    try:
        main()
    except BaseException:  # Threads of Neutron would keep the process.
        traceback.print_exc()
        os._exit(1)
    step(f"took {time.monotonic() - began:.0f} s")
    os._exit(0)
