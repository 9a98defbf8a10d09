"""The vifs of a ringway host, by its command line. It imports nothing of OpenStack.

What comes from OpenStack is checked here before it becomes an argument, and no shell reads it. Each
call of the program has a bound on its time.
"""

import ipaddress
import json
import os
import re
import subprocess

from ringway_neutron import vif_name

# What names, ids and addresses consist of.
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,254}")
PORT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The names of vifs and sockets, as `vif_name` makes them.
NAME = re.compile(r"vhu[0-9a-f]{8}-[0-9a-f]{2}")
MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
# A call that lasts longer is ended: ringway's own calls of Open vSwitch may last 10 s.
PATIENCE_S = 20
# The exit statuses of `timeout`: it has ended the program, or could not run it.
OVERDUE, NOT_RUN = (124, 137), (126, 127)


class Refused(Exception):
    """Why a vif is not there, and what to do about it."""


class Overdue(Refused):
    """The host does not respond, so that nothing else need be asked now."""


def checked(what, value, form=PLAIN, where="in Neutron"):
    """The value as text, if it has the form."""
    text = str(value)
    if not form.fullmatch(text):
        raise Refused(f"{what} {text[:60]!r} is not of the form {form.pattern}: correct it {where}")
    return text


def networks(addresses):
    """Addresses and networks as ringway prints them."""
    try:
        found = [ipaddress.ip_network(address, strict=False) for address in addresses]
    except ValueError as error:
        raise Refused(f"allowed addresses: {error}: correct it in Neutron") from None
    return sorted(str(it.network_address if it.num_addresses == 1 else it) for it in found)


def wanted(details, bridge=None):
    """What the vif of a port shall be, from the details that Neutron sends an agent."""
    pairs = details.get("allowed_address_pairs") or []
    mac = checked("the address", details["mac_address"].lower(), MAC)
    fixed = [it["ip_address"] for it in details.get("fixed_ips") or []]
    is_secure = details.get("port_security_enabled", True)
    ips = networks(fixed + [it["ip_address"] for it in pairs]) if is_secure else []
    macs = {checked("an address", it["mac_address"].lower(), MAC) for it in pairs}
    want = {
        "mac": mac,
        "locking-mode": "locked" if is_secure else "unlocked",
        "allowed-ips": ips,
        "allowed-macs": sorted(macs - {mac}) if is_secure else [],
        "link": "up" if details.get("admin_state_up", True) else "down",
    }
    if bridge:
        want["bridge"] = bridge
        want["iface-id"] = checked("the port's id", details["port_id"], PORT_ID)
        return want
    kind, vlan = details["network_type"], details.get("segmentation_id")
    if kind not in ("flat", "vlan") or (kind == "vlan" and vlan not in range(1, 4095)):
        raise Refused(
            f"network type {str(kind)[:60]!r}, id {str(vlan)[:60]!r}: ringway's own switch has "
            "flat and vlan; set `integration_bridge` in [ringway] for others"
        )
    want["vlan"] = vlan if kind == "vlan" else None
    want["mtu"] = int(details.get("mtu") or 1500)
    return want


def present(vif):
    """What a vif is that ringway lists, by the same keys."""
    is_on_switch, limits = vif["attached_to"] == "switch", vif["limits"]
    have = {
        "mac": vif["mac"],
        "locking-mode": vif["locking_mode"],
        "allowed-ips": networks(vif["allowed_ips"]),
        "allowed-macs": sorted(vif["allowed_macs"]),
        "link": "down" if limits["link_down"] else "up",
    }
    if is_on_switch:
        # A frame of the longest length has an Ethernet header, and perhaps a tag.
        return {**have, "vlan": vif["vlan"], "mtu": (limits["frame_len_max"] or 1518) - 18}
    have["bridge"] = vif["attached_to"]
    # It has a port while its guest is connected; until then, nothing contradicts.
    return {**have, "iface-id": vif["ovs"]["iface_id"]} if vif["ovs"] else have


# What `vif set` changes under a connected guest; for the rest the vif is made again.
LIVE = ("locking-mode", "allowed-ips", "allowed-macs", "link", "vlan")


class Host:
    """The ringway host of this machine."""

    def __init__(self, program, socket_dir, queues, bridge=None):
        self.program, self.socket_dir = program, socket_dir
        self.queues, self.bridge = queues, bridge

    def call(self, *words):
        """What the program prints."""
        # Not `subprocess`'s bound, whose exception is another class under green threads.
        bound = ["timeout", "--kill-after=2", str(PATIENCE_S)]
        done = subprocess.run(
            [*bound, self.program, *words], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", check=False,
        )
        what = " ".join(words[:3])
        if done.returncode in OVERDUE:
            raise Overdue(f"{what}: no response within {PATIENCE_S} s: see `ringway vif list`")
        if done.returncode in NOT_RUN:
            raise Refused(f"{done.stderr.strip()[-200:]}: set `program` in [ringway]")
        if done.returncode:
            reason = done.stderr.strip()[-500:] or f"exit status {done.returncode}"
            raise Refused(f"{what}: {reason}")
        return done.stdout

    def vifs(self):
        """The vifs that an agent has added, by name: those with its names and sockets."""
        vifs = json.loads(self.call("vif", "list", "--json"))
        return {vif["name"]: vif for vif in vifs if self.is_ours(vif)}

    def is_ours(self, vif):
        virtio, name = vif.get("virtio") or {}, vif["name"]
        is_agents = NAME.fullmatch(name) and virtio.get("at_run_time")
        return bool(is_agents) and virtio.get("socket") == os.path.join(self.socket_dir, name)

    def ensure(self, details):
        """Makes the vif of a port, or changes it to what Neutron says now."""
        name = vif_name(checked("the port's id", details["port_id"], PORT_ID))
        want, vif = wanted(details, self.bridge), self.vifs().get(name)
        if vif:
            have = present(vif)
            differs = [key for key in have if have[key] != want.get(key)]
            if all(key in LIVE for key in differs):
                for key in differs:
                    self.call("vif", "set", name, key, as_word(want[key]))
                return
            self.call("vif", "remove", name)
        self.call("vif", "add", name, *self.options(name, want))
        if want["link"] == "down":
            self.call("vif", "set", name, "link", "down")

    def options(self, name, want):
        socket = os.path.join(self.socket_dir, name)
        options = [f"--vhost={socket}", f"--queues={self.queues}", f"--mac={want['mac']}"]
        keys = {key: want[key] for key in ("locking-mode", "allowed-ips", "allowed-macs")}
        if self.bridge:
            # A machine runs when Neutron has its port, which therefore comes before the driver.
            options.append(f"--bridge={self.bridge}")
            keys.update({"iface-id": want["iface-id"], "bind": "plugged"})
        else:
            keys.update({key: want[key] for key in ("vlan", "mtu") if want[key]})
        return options + [f"--set={key}={json.dumps(value)}" for key, value in keys.items()]

    def remove(self, name):
        """Removes the vif, if it is there."""
        if name in self.vifs():
            self.call("vif", "remove", name)


def as_word(value):
    """A value for `vif set`."""
    return (",".join(value) if isinstance(value, list) else str(value or "")) or "none"
