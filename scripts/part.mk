# The targets of a part that is built and tested without the others: its Makefile sets PART and
# includes this. Only the program that serves vifs is built beside it, because tests start it.

CARGO ?= cargo
# In a shell without a login, the path often lacks a Rust installed by rustup.
export PATH := $(PATH):/usr/sbin:/sbin:$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help build check test nightly

help: ## print this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | \
	    awk -F@ '{ printf "%-15s %s\n", $$1, $$2 }'

build: ## build the program, in target/release of the root
	../scripts/install-packages build
	$(CARGO) build --release --package ringway-$(PART)

check: ## run before each push: format, lints, tidy, spec, unit tests
	../scripts/install-packages $(PART)-check
	$(CARGO) xtask check $(PART)

test: ## check, and the tests of the program
	../scripts/install-packages $(PART)-test
	$(CARGO) xtask test $(PART)

nightly: ## test, with bounds on time and the tests that take minutes
	../scripts/install-packages $(PART)-nightly
	$(CARGO) xtask nightly $(PART)
