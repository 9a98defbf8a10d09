"""The agent of a compute host: each vhost-user socket of a machine becomes a vif of ringway.

Nova starts the machine, QEMU creates the socket and waits at it, and Neutron says which port it is.
The agent adds the vif and reports that the port is up, and Nova lets the machine run. When QEMU is
gone, so is the vif. The agent keeps no state: after a restart it compares sockets with vifs.

The loop around it is Neutron's own for such agents.
"""

import logging
import os
import re
import signal
import sys
import time

try:  # An older Neutron has green threads, which must be there before all else.
    from neutron.common import eventlet_utils
    eventlet_utils.monkey_patch()
except ImportError:
    pass

from neutron.api.rpc.handlers import securitygroups_rpc
from neutron.common import config as common_config
from neutron.plugins.ml2.drivers.agent import _agent_manager_base as base
from neutron.plugins.ml2.drivers.agent import _common_agent
from neutron_lib.agent import topics
from oslo_config import cfg

from ringway_neutron import AGENT_BINARY, AGENT_TYPE, SOCKET_DIR, vif_name
from ringway_neutron.vifs import NAME, Host, Overdue, Refused, checked

LOG = logging.getLogger(__name__)

OPTIONS = [
    cfg.StrOpt("program", default="/usr/bin/ringway", help="The program of ringway."),
    cfg.StrOpt("socket_dir", default=SOCKET_DIR, help="Where QEMU creates its sockets."),
    cfg.IntOpt("queues", default=8, min=1, max=64,
               help="The most queues of a machine's interface: `max_queues` of nova.conf."),
    cfg.ListOpt("physical_networks", default=[],
                help="Physical networks that the uplink of ringway's switch reaches."),
    cfg.StrOpt("integration_bridge",
               help="A bridge of Open vSwitch, such as br-int, that OVN controls: ports are there "
                    "and not on ringway's own switch."),
]
# A socket's path has at most 107 characters.
PATH = re.compile(r"/[A-Za-z0-9._/-]{1,90}[A-Za-z0-9]")
# What failed is tried again so often.
RETRY_S = 30


class Callbacks(securitygroups_rpc.SecurityGroupAgentRpcCallbackMixin,
                base.CommonAgentManagerRpcCallBackBase):
    """What Neutron says by itself."""

    def port_update(self, context, **kwargs):
        self.updated_devices.add(device_of(vif_name(kwargs["port"]["id"])))

    def port_delete(self, context, **kwargs):
        # Every agent hears of every port.
        name = vif_name(kwargs["port_id"])
        if name in self.agent.mgr.vifs:
            self.agent.mgr.remove(name)


class Manager(base.CommonAgentManagerBase):
    """What Neutron's loop asks of this host. A device is a socket to which a process is bound."""

    def __init__(self, host, options):
        self.host, self.options = host, options
        self.details = {}
        self.vifs = {}
        self.not_before = {}

    # What the loop asks in each turn.

    def get_all_devices(self):
        # Not the files: a machine that was killed leaves one, to which no process is bound.
        folder, names = self.options.socket_dir + "/", set()
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                path = line.rstrip("\n").split(None, 7)[-1]
                if path.startswith(folder):
                    names.add(path[len(folder):])
        return {device_of(name) for name in names if NAME.fullmatch(name)}

    def get_devices_modified_timestamps(self, devices):
        """Changes when a vif is gone or could not be made: the loop then has it made."""
        names = {device_of(name): name for name in self.listed()}
        for device in names.keys() - devices:
            self.remove(names[device])
        turn = int(time.monotonic() // RETRY_S)
        return {device: "served" if device in names else turn for device in devices}

    def setup_arp_spoofing_protection(self, device, device_details):
        # The loop calls this first, and only here it passes on what Neutron knows.
        self.details[device] = device_details

    def plug_interface(self, network_id, network_segment, device, device_owner):
        details = self.details.pop(device)
        if not self.is_due("host"):
            return False
        reason = refusal(self.host.ensure, details)
        if isinstance(reason, Overdue):
            self.fail("host", reason)
        elif reason:
            LOG.error("%s is not served: %s", device, reason)
        return not reason

    def ensure_port_admin_state(self, device, admin_state_up):
        # It is one of the details.
        pass

    def delete_arp_spoofing_protection(self, devices):
        # `get_devices_modified_timestamps` removes their vifs, and those of before this process.
        pass

    def delete_unreferenced_arp_protection(self, current_devices):
        pass

    # Vifs.

    def listed(self):
        """The vifs of ports; while ringway does not respond, those of before."""
        reason = self.is_due("host") and refusal(self.update)
        if reason:
            self.fail("host", reason)
        return self.vifs

    def update(self):
        self.vifs = self.host.vifs()

    def remove(self, name):
        if not self.is_due(name):
            return
        reason = refusal(self.host.remove, name)
        if reason:
            self.fail(name, reason)
        else:
            LOG.info("%s is removed", name)

    def is_due(self, what):
        return self.not_before.get(what, 0) <= time.monotonic()

    def fail(self, what, reason):
        LOG.error("%s; the next attempt is in %s s", reason, RETRY_S)
        self.not_before[what] = time.monotonic() + RETRY_S

    # What the loop asks once.

    def get_agent_configurations(self):
        bridge = self.options.integration_bridge
        types = ["flat", "vlan", "geneve", "vxlan"] if bridge else ["flat", "vlan"]
        return {
            "vhostuser_socket_dir": self.options.socket_dir,
            "physical_networks": self.options.physical_networks,
            "integration_bridge": bridge,
            "network_types": types,
        }

    def get_agent_id(self):
        return "ringway-" + cfg.CONF.host

    def get_agent_api(self, **kwargs):
        return None

    def get_extension_driver_type(self):
        return "ringway"

    def get_rpc_callbacks(self, context, agent, sg_agent):
        return Callbacks(context, agent, sg_agent)

    def get_rpc_consumers(self):
        return [[topics.PORT, topics.UPDATE], [topics.PORT, topics.DELETE],
                [topics.SECURITY_GROUP, topics.UPDATE]]


def refusal(call, *arguments):
    """Why a call was refused, if it was."""
    try:
        call(*arguments)
    except Refused as reason:
        return reason
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        return Refused(f"unexpected details, {error!r}: is this agent of ringway's version?")
    return None


def device_of(name):
    """The device of a vif, by the name with which Neutron finds its port; it is also Nova's."""
    return "tap" + name[3:]


def made():
    """The agent that the configuration describes."""
    options = cfg.CONF.ringway
    for what in ("program", "socket_dir"):
        checked(what, getattr(options, what), PATH, "in [ringway]")
    if options.integration_bridge:
        checked("integration_bridge", options.integration_bridge, where="in [ringway]")
    host = Host(options.program, options.socket_dir, options.queues, options.integration_bridge)
    interval, patience = cfg.CONF.AGENT.polling_interval, cfg.CONF.AGENT.quitting_rpc_timeout
    return _common_agent.CommonAgentLoop(
        Manager(host, options), interval, patience, AGENT_TYPE, AGENT_BINARY
    )


def main():
    common_config.register_common_config_options()
    cfg.CONF.register_cli_opts(OPTIONS, "ringway")
    # Security groups are not ringway's, whatever a file says that is also for another agent.
    cfg.CONF.set_override("firewall_driver", "noop", "SECURITYGROUP")
    common_config.init(sys.argv[1:])
    common_config.setup_logging()
    try:
        agent = made()
    except Refused as reason:
        sys.exit(f"{AGENT_BINARY}: {reason}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        agent.start()
    except (SystemExit, KeyboardInterrupt) as end:
        # Vifs stay, and the next agent finds them. Threads may still wait for Neutron.
        LOG.info("%s ends", AGENT_TYPE)
        logging.shutdown()
        os._exit(getattr(end, "code", 0) or 0)
