# Everything for a fresh Debian 12 or 13: each target installs what is missing first.
# The checks themselves live in crates/xtask.

CARGO ?= cargo
# In a shell without a login, the path often lacks a Rust installed by rustup.
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

# The programs that users run.
PROGRAMS := --bins --package ringway --package ringway-doctor --package ringway-lab --package ringway-hostile
# Crates for other projects: `libraries::CRATES` of xtask.
PUBLIC := wire ring steering xenbus netfront

.DEFAULT_GOAL := help
.PHONY: help demo check test nightly fuzz bench miri sim-million build deb clean xen-smoke xen-full
.PHONY: mutants virtio-migrate virtio-dpdk virtio-admin docs semver xen-admin xen-race hostile arm64 arm64-test
.PHONY: xen-arm64 ovn static release upgrades

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | \
	    awk -F@ '{ printf "%-20s %s\n", $$1, $$2 }'

# Built with less optimisation than a release, which would take three times as long.
demo: ## run a demonstration, in a few minutes: guests, a switch and real traffic on this machine
	@echo 'demo: installs a compiler and iperf3, up to 170 MB of packages, if they are missing, then'
	@echo 'demo: downloads and builds some 120 crates in 1 to 3 minutes on two CPUs, then runs for 10 s'
	scripts/install-packages demo
	$(CARGO) run --profile demo --package ringway -- demo

# What each of the three shows: HACKING.md. `make -C doctor` and `make -C lab` have the same three.
check: ## run before each push, two minutes: format, lints, tidy, spec, unit tests, 2,500 worlds
	scripts/install-packages check
	$(CARGO) xtask check

test: ## check, the tests of all crates and of the program, 10,000 worlds: what CI runs
	scripts/install-packages test
	$(CARGO) xtask test

nightly: ## everything, with bounds on time: packages, Arm64, fuzzing, real Xen; two hours
	scripts/install-packages nightly
	$(CARGO) xtask nightly

docs: ## build the documents as a book, in target/book
	scripts/install-packages docs
	$(CARGO) xtask book

semver: ## find changes of the public crates since BASE=REVISION that break their users
	scripts/install-packages semver
	$(CARGO) semver-checks --baseline-rev '$(BASE)' $(PUBLIC:%=--package ringway-%)

fuzz: ## run every fuzz target for a minute: docs/fuzzing.md
	scripts/install-packages fuzz
	$(CARGO) xtask fuzz

hostile: ## run hostile guests beside honest ones; print what the honest ones lose (docs/hostile.md)
	scripts/install-packages hostile
	$(CARGO) build --release $(PROGRAMS)
	target/release/ringway-hostile run all $(HOSTILE_ARGS)

bench: ## compare the data path with others: rates, latency, instructions, idle cost
	scripts/install-packages bench
	$(CARGO) build --release --package ringway --package ringway-bench
	target/release/ringway-bench $(BENCH_ARGS)

# Code that has unsafe code below it or shares memory between threads, and needs no mapping, file or
# descriptor. Of sys, datapath, engine and xenbus only a part runs: the rest is arithmetic, or a
# search through all orders of one thread, which takes an interpreter hours. Of virtio only the unit
# tests run: its queues are in mapped files. Of switch only the code that threads share runs:
# multicast would take an hour and shares nothing more. Tests may read the clock.
MIRI := MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri
MIRI_CRATES := wire ring loopback steering netback netfront

miri: ## test the data path in an interpreter that finds undefined behaviour and races
	@if $(MIRI) --version >/dev/null 2>&1; then set -ex; \
	    $(MIRI) test --package ringway-sys --lib shared::; \
	    $(MIRI) test --package ringway-datapath --lib; \
	    $(MIRI) test --package ringway-engine --lib; \
	    $(MIRI) test --package ringway-virtio --lib; \
	    $(MIRI) test --package ringway-xenbus --lib; \
	    $(MIRI) test --package ringway-switch --lib --test classify --test fdb; \
	    $(MIRI) test $(MIRI_CRATES:%=--package ringway-%); \
	else \
	    echo 'SKIPPED: miri: rustup component add miri rust-src --toolchain nightly'; \
	fi

# BASE=REVISION compares with another revision; CRATE=host breaks 30 places of that crate instead,
# from all of its files, and SAMPLE=1, 2 ... others. Those that neither a test of the crate nor
# 1,500 worlds notice are in target/mutants.out/missed.txt. Left out: .cargo/mutants.toml.
BASE ?= origin/main
SAMPLE ?= 0
mutants: ## break the code that a branch has changed, place by place: which defect does no test notice?
	scripts/install-packages mutants
	mkdir -p target
	git diff '$(BASE)' > target/mutants.diff
	$(CARGO) mutants --output target --cargo-test-arg=--package=ringway-sim $(if $(CRATE), \
	    --package ringway-$(CRATE) --sharding round-robin --shard $(SAMPLE)/$$((($$($(CARGO) mutants \
	    --list --package ringway-$(CRATE) | wc -l) + 29) / 30)), --in-diff target/mutants.diff)

virtio-migrate: ## migrate a virtual machine between two QEMUs under traffic; count lost pings
	scripts/install-packages virtio-migrate
	RINGWAY_NIGHTLY=1 $(CARGO) test --package ringway --test e2e migration -- --nocapture

virtio-dpdk: ## pass data through every layout of DPDK's virtio driver; a few minutes
	scripts/install-packages virtio-dpdk
	RINGWAY_NIGHTLY=1 $(CARGO) test --package ringway --test e2e dpdk -- --nocapture

virtio-admin: ## execute docs/virtio.md and first-steps.md on whole Debians 12 and 13: package, systemd, libvirt
	scripts/install-packages virtio-admin
	$(MAKE) deb
	tests/virtio/service bookworm
	tests/virtio/service trixie

# OVN_ARGS="..." selects scenarios, and more: tests/ovn/run --help
ovn: ## connect guests of both kinds on three hosts by OVN, in namespaces; move them, break things
	scripts/install-packages ovn
	$(CARGO) build --release $(PROGRAMS)
	tests/ovn/run $(OVN_ARGS)

xen-smoke: ## test on emulated real Xen: the scenarios that take a few minutes
	scripts/install-packages xen
	$(CARGO) build --release $(PROGRAMS)
	$(CARGO) build --release --package ringway-xen --example conformance
	tests/xen/run --set smoke $(XEN_ARGS)

xen-full: ## test on emulated real Xen: all scenarios
	scripts/install-packages xen
	$(CARGO) build --release $(PROGRAMS)
	$(CARGO) build --release --package ringway-xen --example conformance
	tests/xen/run --set full $(XEN_ARGS)

# The scenarios that show most in one boot. XEN_ARGS="..." selects others.
xen-arm64: ## test on emulated real Xen for Arm64: ping, traffic, kill -9 of the backend
	scripts/install-packages xen-arm64
	$(CARGO) xtask arm64 build
	tests/xen/run --arch arm64 $(or $(XEN_ARGS),connect ping traffic crash)

# SUITE=trixie selects Debian 13. XEN_ARGS="..." selects scenarios.
SUITE := bookworm
xen-admin: ## test on Xen with a whole Debian: the package, and docs/xen.md executed
	scripts/install-packages xen
	$(MAKE) deb
	$(CARGO) build --release --package ringway-xen --examples
	tests/xen/run --dom0 $(SUITE) $(or $(XEN_ARGS),--set admin)

# SUITE=trixie selects Debian 13. The package of an earlier commit is built first, once.
upgrades: ## install packages over each other under guests with TCP, of Xen and of QEMU, within an hour
	scripts/install-packages xen
	scripts/install-packages virtio-admin
	$(MAKE) deb
	tests/xen/run --dom0 $(SUITE) upgrade
	SILENCE_MS_MAX=50 tests/virtio/service $(SUITE)

# ARCH=arm64 does so on Arm64, where Debian's Xen has no driver domains. XEN_ARGS="--rounds 10" has
# more rounds; RACES=race has one of the races. Each leaves race.jsonl, and race.json for docs/measured.
ON_ARM64 = $(filter arm64,$(ARCH))
RACES = race race-guests $(if $(ON_ARM64),,race-driver)
RACES_IN = target/xen/$(if $(ON_ARM64),arm64/)results/race
xen-race: ## compare ringway with the kernel's backend on emulated real Xen, as a table
	scripts/install-packages xen$(ON_ARM64:%=-%)
	$(CARGO) $(if $(ON_ARM64),xtask arm64 build,build --release --package ringway)
	$(CARGO) build --release --package ringway-bench
	tests/xen/run $(ARCH:%=--arch %) --results $(RACES_IN) $(XEN_ARGS) $(RACES)
	for race in $(RACES); do \
	    target/release/ringway-bench race $(RACES_IN)/$$race/race.jsonl && \
	    target/release/ringway-bench race --json $(RACES_IN)/$$race/race.jsonl \
	        > $(RACES_IN)/$$race/race.json || exit; \
	done

sim-million: ## simulate a million hosts with different seeds, on all CPUs
	scripts/install-packages build
	$(CARGO) run --release --package ringway-sim -- --seeds 0..1000000 $(SIM_ARGS)

build: ## build the programs: target/release/ringway, ringway-doctor, ringway-lab, ringway-hostile
	scripts/install-packages build
	$(CARGO) build --release $(PROGRAMS)

arm64: ## build the programs for Arm64 on another machine: docs/arm64.md
	scripts/install-packages arm64
	$(CARGO) xtask arm64 build

arm64-test: ## run the tests for Arm64 under user-mode emulation
	scripts/install-packages arm64
	$(CARGO) xtask arm64 test

# ARCH=arm64 builds it for Arm64, on another machine: docs/arm64.md.
deb: ## build the Debian packages in target/debian; with ARCH=arm64 in target/arm64
	scripts/install-packages deb
	test "$(ARCH)" != arm64 || scripts/install-packages arm64
	$(CARGO) xtask deb $(ARCH:%=--arch %)

# ARCH=arm64 builds them for Arm64, on another machine.
static: ## build programs that need no library of their host: target/static/*.tar.gz
	scripts/install-packages build
	test "$(ARCH)" != arm64 || scripts/install-packages arm64
	$(CARGO) xtask static $(ARCH:%=--arch %)

# From a clean tree. TWICE=--twice builds it in two copies of the tree, and compares them.
release: ## build all that users download, for both architectures, in target/dist
	scripts/install-packages release
	$(CARGO) xtask release $(TWICE)

clean: ## remove what was built
	$(CARGO) clean
