"""What the test is made of: Neutron's server, Nova, machines, and a ringway host.

Neutron is the real one of the Python registry, with our mechanism driver, a database (SQLite) and
its messages, which go within this process; so the agent runs in a thread. os-vif is real, too. Nova
is what its `network/os_vif_util.py` and its libvirt driver do with both, in their order. A machine
is `ringway guest --vhost` in place of QEMU: it creates the socket, waits there, and has a device.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import os_vif
import sqlalchemy
from neutron.api import extensions
from neutron.common import config
from neutron_lib import context
from neutron_lib.api import attributes
from neutron_lib.api.definitions import portbindings
from neutron_lib.db import api as db_api
from neutron_lib.db import model_base
from neutron_lib.plugins import directory
from neutron_lib.plugins import utils
from os_vif import objects
from oslo_config import cfg

from ringway_neutron import agent as agents

# How long a state may take to come on a busy machine.
SOON_S = 90
HOST = "compute1"
PROJECT = "6e6f2d726561-6c2d70726f6a"
CONFIGURATION = """
[DEFAULT]
core_plugin = ml2
host = {host}
transport_url = fake:///
state_path = {folder}
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[database]
connection = sqlite:///{folder}/neutron.db?timeout=60
[ml2]
type_drivers = flat,vlan
tenant_network_types = vlan
mechanism_drivers = ringway
extension_drivers = port_security
[ml2_type_vlan]
network_vlan_ranges = physnet1:100:200,physnet2:100:200
[AGENT]
polling_interval = 1
report_interval = 2
[oslo_concurrency]
lock_path = {folder}
[ringway]
program = {program}
socket_dir = {sockets}
queues = 4
physical_networks = physnet1
"""


def wait_for(what, see):
    """Waits until something is there, and returns it."""
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        found = see()
        if found:
            return found
        time.sleep(0.2)  # waits: looks again until the state is there
    raise AssertionError(f"{what}: not within {SOON_S} s")


class Ringway:
    """A ringway host of this test's own."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        os.environ["RINGWAY_DIR"] = folder + "/run"
        with open(folder + "/host.toml", "w", encoding="utf-8") as file:
            file.write("[host]\n")
        self.start()

    def start(self):
        command = [self.program, "run", "--config", self.folder + "/host.toml"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        wait_for("a host that serves", lambda: self.vifs() is not None)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(SOON_S)

    def vifs(self):
        command = [self.program, "vif", "list", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
        return {it["name"]: it for it in json.loads(done.stdout)} if done.returncode == 0 else None

    def vif(self, name):
        return (self.vifs() or {}).get(name)


def one_at_a_time(engine):
    """Has SQLite's transactions wait for each other, where it would refuse a second writer."""
    @sqlalchemy.event.listens_for(engine, "begin", insert=True)
    def begin(connection):
        # This is how oslo.db, whose own listener is the next, marks what has begun.
        if "in_transaction" not in connection.info:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.info["in_transaction"] = True


class Neutron:
    """Neutron's server, with a network of a VLAN, and what its operators do."""

    def __init__(self, folder, program):
        self.sockets = folder + "/sockets"
        os.mkdir(self.sockets)
        self.file = folder + "/neutron.conf"
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(
                host=HOST, folder=folder, program=program, sockets=self.sockets
            ))
        config.register_common_config_options()
        cfg.CONF.register_cli_opts(agents.OPTIONS, "ringway")
        cfg.CONF.set_default("firewall_driver", "noop", "SECURITYGROUP")
        config.init(["--config-file", self.file])
        config.setup_logging()
        from neutron import manager
        from neutron.db.migration.models import head  # noqa: F401 (all tables)
        engine = db_api.CONTEXT_WRITER.get_engine()
        one_at_a_time(engine)
        model_base.BASEV2.metadata.create_all(engine)
        manager.init()
        extensions.PluginAwareExtensionManager.get_instance().extend_resources(
            "2.0", attributes.RESOURCES
        )
        self.plugin = directory.get_plugin()
        self.plugin.start_rpc_listeners()

    @property
    def context(self):
        return context.get_admin_context()

    def network(self, physnet, vlan, cidr):
        network = utils.create_network(self.plugin, self.context, {"network": {
            "name": f"vlan{vlan}", "project_id": PROJECT, "provider:network_type": "vlan",
            "provider:physical_network": physnet, "provider:segmentation_id": vlan,
        }})
        utils.create_subnet(self.plugin, self.context, {"subnet": {
            "network_id": network["id"], "project_id": PROJECT, "cidr": cidr, "ip_version": 4,
            "enable_dhcp": False, "name": "s",
        }})
        return network["id"]

    def port(self, network, owner="compute:nova", **more):
        """A port as Nova creates and binds it."""
        return utils.create_port(self.plugin, self.context, {"port": {
            "network_id": network, "project_id": PROJECT, "device_owner": owner, "device_id": "vm",
            "name": "p", portbindings.HOST_ID: HOST, "admin_state_up": True, **more,
        }})

    def update(self, port, **changes):
        self.plugin.update_port(self.context, port["id"], {"port": changes})

    def status(self, port):
        return self.plugin.get_port(self.context, port["id"])["status"]

    def wait_for_status(self, port, status):
        wait_for(f"a port that is {status}", lambda: self.status(port) == status)

    def wait_for_agent(self, bridge=None):
        def is_there(agent):
            reported = agent["configurations"].get("integration_bridge")
            return agent["alive"] and reported == bridge
        agents_of = self.plugin.get_agents
        wait_for("the agent's report", lambda: any(map(is_there, agents_of(self.context))))


class Killed(Exception):
    """Ends the thread of an agent."""


class Agent:
    """The agent of this host, in a thread, because Neutron's messages stay in this process."""

    def __init__(self, bridge=None):
        cfg.CONF.set_override("integration_bridge", bridge, "ringway")
        self.loop = agents.made()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        try:
            self.loop.start()
        except Killed:
            pass

    def kill(self):
        """Ends its loop and its reports, and leaves everything as it is."""
        def end(*_, **__):
            raise Killed
        self.loop.state_rpc.report_state = lambda *_, **__: None
        self.loop.scan_devices = end
        self.thread.join(SOON_S)
        assert not self.thread.is_alive()
        self.loop.connection.close()


class Switch:
    """Open vSwitch in user space, with the bridge that OVN would control."""

    def __init__(self, folder):
        os.environ["OVS_RUNDIR"] = self.folder = folder + "/ovs"
        os.mkdir(self.folder)
        file = self.folder + "/conf.db"
        schema = "/usr/share/openvswitch/vswitch.ovsschema"
        subprocess.run(["ovsdb-tool", "create", file, schema], check=True)
        socket = f"unix:{self.folder}/db.sock"
        self.run("ovsdb-server", file, "--remote=p" + socket)
        wait_for("the database", lambda: os.path.exists(self.folder + "/db.sock"))
        self.ask("--no-wait", "init")
        self.run("ovs-vswitchd", socket, "--disable-system")
        self.ask("add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev")

    def run(self, program, *words):
        control = f"--unixctl={self.folder}/{program}.ctl"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen([program, *words, control], **quiet)

    def ask(self, *words):
        done = subprocess.run(["ovs-vsctl", *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def id(self, port, key):
        words = ("--if-exists", "get", "Interface", port, f"external_ids:{key}")
        return self.ask(*words).strip('"')


class Machine:
    """What Nova, libvirt and QEMU do for a machine with one port."""

    def __init__(self, neutron, program, port, queues=2):
        self.program, self.port, self.queues, self.qemu = program, port, queues, None
        details = port[portbindings.VIF_DETAILS]
        assert port[portbindings.VIF_TYPE] == "vhostuser", port
        # Each of these would have Nova use another plugin of os-vif.
        others = ("vhostuser_ovs_plug", "vhostuser_fp_plug", "vhostuser_vrouter_plug")
        assert not set(others) & set(details), details
        self.vif = objects.vif.VIFVHostUser(
            id=port["id"], address=port["mac_address"], plugin="noop", active=False,
            network=objects.network.Network(id=port["network_id"]), preserve_on_delete=False,
            has_traffic_filtering=details["port_filter"], vif_name=("tap" + port["id"])[:14],
            mode=details["vhostuser_mode"], path=details["vhostuser_socket"],
        )
        self.info = objects.instance_info.InstanceInfo(uuid=port["id"], name="instance-00000001")
        self.name = os.path.basename(self.vif.path)
        self.device = "m" + self.name[3:10]
        # The namespace of the guest's device; QEMU itself stays in that of the host.
        self.guest = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.address = port["fixed_ips"][0]["ip_address"]

    def plug(self):
        os_vif.plug(self.vif, self.info)

    def start(self):
        """QEMU starts, after Nova has plugged its ports."""
        assert self.vif.mode == "server"
        command = [self.program, "guest", "--vhost", self.vif.path, "--mode", "server",
                   "--queues", str(self.queues), "--prefix", self.device, "--workers", "1",
                   "--mac", self.port["mac_address"], "--log-level", "warn"]
        # The file of a machine that was killed, which QEMU also replaces.
        if os.path.exists(self.vif.path):
            os.unlink(self.vif.path)
        self.qemu = subprocess.Popen(command, start_new_session=True)
        wait_for("the socket of a machine", lambda: os.path.exists(self.vif.path))

    def run(self):
        """The machine runs: its device has the address of its port."""
        device = self.device + "0"
        ip = ["ip", "link", "set", device, "netns", str(self.guest.pid)]
        quiet = {"stderr": subprocess.DEVNULL, "check": False}
        wait_for("its device", lambda: subprocess.run(ip, **quiet).returncode == 0)
        self.inside("ip", "addr", "add", f"{self.address}/24", "dev", device)
        self.inside("ip", "link", "set", device, "up")

    def inside(self, *command):
        words = ["nsenter", "--net", "--target", str(self.guest.pid), *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"

    def ping(self, other):
        self.inside("ping", "-n", "-c", "1", "-i", "0.2", "-w", str(SOON_S), other.address)

    def kill(self):
        """QEMU dies and leaves its socket."""
        os.killpg(self.qemu.pid, signal.SIGKILL)
        self.qemu.wait(SOON_S)
        self.qemu = None

    def end(self):
        """The machine ends, and Nova unplugs its port."""
        if self.qemu:
            self.qemu.send_signal(signal.SIGTERM)
            self.qemu.wait(SOON_S)
            self.qemu = None
        # As QEMU does at its end.
        if os.path.exists(self.vif.path):
            os.unlink(self.vif.path)
        os_vif.unplug(self.vif, self.info)


def step(what):
    print(f"openstack: {what}", file=sys.stderr, flush=True)
