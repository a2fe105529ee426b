# The two commands: `make demo` and `make test`, both with the dev profile. The demo installs and builds only what it
# needs itself: without etcd, and with PostgreSQL's grammar as slow as it is quick to build.
# `make release` and the benchmarks alone build for release. What they measure is what `make release` makes.

CARGO ?= cargo
# More flags: make demo ARGS=--keep, make proof ARGS='--minutes 5 --seed 7', make mediation ARGS='--conversations 1 --seed 7'
ARGS ?=
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CARGO_BUILD_TARGET_DIR),target)
BINARY := $(abspath $(TARGET_DIR))/debug/pgpalisade
PROOF := $(abspath $(TARGET_DIR))/debug/pgpalisade-proof
OUTAGE := $(abspath $(TARGET_DIR))/debug/pgpalisade-outage
MEDIATION := $(abspath $(TARGET_DIR))/debug/pgpalisade-mediation
RELEASE := $(abspath $(TARGET_DIR))/release/pgpalisade
BENCH := $(abspath $(TARGET_DIR))/release/pgpalisade-bench

QUICK := --no-default-features $(addprefix --config profile.dev.,debug=0 debug-assertions=false overflow-checks=false \
	package.pg_query.opt-level=0 package.pgpalisade-takeover.opt-level=0 package.redb.opt-level=0)

.DEFAULT_GOAL := help
.PHONY: help demo test unit it proof outage mediation drivers versions regression release release-profiled deb bench
.PHONY: bench-micro check fuzz-build build packages-build packages-test

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

demo: export CARGO_INCREMENTAL := 0
# Two things at a time: crates come while the compiler is installed, PostgreSQL while the crates are built.
demo: ## Install what it needs, build, and play the story: a stale leader is refused
	@$(CARGO) tree --package pgpalisade --edges normal,build --no-default-features --locked --quiet >/dev/null & \
		scripts/install-packages demo-build && wait $$!
	@scripts/install-packages demo & packages=$$!; \
		$(CARGO) build --package pgpalisade --bins --locked $(QUICK); built=$$?; \
		wait $$packages && exit $$built
	@"$(BINARY)" demo $(ARGS)

# Each test makes servers of its own: in memory, if there is room, they take half the time.
IN_MEMORY = $(shell findmnt -nb -o OPTIONS,AVAIL /dev/shm | awk '!/noexec/ && $$2 > 4e9 { print "/dev/shm"; exit }')

test versions regression: export TMPDIR := $(or $(TMPDIR),$(IN_MEMORY),/tmp)
# Names the binary that was just built, so that no test builds it again.
test: export PGPALISADE_BIN := $(BINARY)
# nextest runs no doc tests, so they follow. `cargo test` includes them.
test: build ## Install what the tests need, and run all of them, the code blocks of the docs among them
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		echo "+ $(CARGO) nextest run --workspace" && \
		$(CARGO) nextest run --workspace --locked && \
		echo "+ $(CARGO) test --workspace --doc" && \
		$(CARGO) test --workspace --doc --locked; \
	else \
		echo "+ $(CARGO) test --workspace --no-fail-fast   (cargo-nextest is not here)" && \
		$(CARGO) test --workspace --locked --no-fail-fast; \
	fi

# Commands for every change. Neither needs cargo-nextest.
UNIT := policies wire fence session pool logins
unit: ## Test the pure crates, in a minute: no server, no packages but a C compiler and libclang
	$(CARGO) test --locked --lib $(UNIT:%=--package pgpalisade-%)

it: export PGPALISADE_BIN := $(BINARY)
it: export PGPALISADE_KEEP := $(KEEP)
it: ## Run some end-to-end tests: make it T=name (KEEP=1 keeps the directories of their servers)
	$(CARGO) build --package pgpalisade --bins --locked
	$(CARGO) test --locked --package pgpalisade-tests -- "$(T)" $(ARGS)

proof: export PGPALISADE_BIN := $(BINARY)
proof: build ## The guarantee under faults, 30 minutes (ARGS='--minutes 5 --seed 7 --store postgres')
	@"$(PROOF)" $(ARGS)

outage: export PGPALISADE_BIN := $(BINARY)
outage: build ## How long nobody can write while Patroni fails over, 15 minutes (ARGS='--rounds 1')
	@"$(OUTAGE)" $(ARGS)

mediation: export PGPALISADE_BIN := $(BINARY)
mediation: build ## Conversations at random, the database as the judge, 60 minutes (ARGS='--minutes 5 --seed 7')
	@"$(MEDIATION)" $(ARGS)

drivers: export PGPALISADE_BIN := $(BINARY)
drivers: build ## The same scenarios with every driver, 10 minutes; writes the tables of docs/drivers.md (ARGS='psycopg pgjdbc')
	@CARGO_TARGET_DIR="$(abspath $(TARGET_DIR))" tests/drivers/run.py $(ARGS)

versions: export PGPALISADE_BIN := $(BINARY)
versions: build ## Tests with PostgreSQL 14 to 18, etcd 3.4 and 3.5, an hour; writes the figures of README.md (ARGS='14 etcd-3.5')
	@CARGO_TARGET_DIR="$(abspath $(TARGET_DIR))" scripts/test-versions $(ARGS)

regression: export PGPALISADE_BIN := $(BINARY)
regression: build ## PostgreSQL's own regression and isolation tests through the proxy, half an hour (ARGS=session)
	@CARGO_TARGET_DIR="$(abspath $(TARGET_DIR))" tests/regression/run $(ARGS)

release: packages-build ## Build the proxy to run in production: target/release/pgpalisade
	$(CARGO) build --release --locked --package pgpalisade

release-profiled: packages-test ## For packagers: the same, optimised by a profile of itself, 20 minutes: target/profiled/pgpalisade
	@CARGO="$(CARGO)" CARGO_TARGET_DIR="$(TARGET_DIR)" scripts/build-release

deb: release ## A Debian package of it: target/pgpalisade_VERSION_ARCHITECTURE.deb
	scripts/build-deb "$(RELEASE)" "$(TARGET_DIR)"

# `PGPALISADE_BIN=target/profiled/pgpalisade make bench` measures another binary.
bench: export PGPALISADE_BIN := $(or $(PGPALISADE_BIN),$(RELEASE))
bench: packages-test release ## Measure the proxy beside its peers, 40 minutes (ARGS='--size quick': a quarter of an hour)
	$(CARGO) build --release --locked --bins --package pgpalisade-bench
	@"$(BENCH)" $(ARGS)

bench-micro: packages-build ## Time the classification of a text (ARGS=classified: only those with this in their name)
	$(CARGO) bench --locked --package pgpalisade-bench --bench micro -- $(ARGS)

check: packages-build ## rustfmt and clippy, warnings denied; the fuzz targets, and the authority without etcd, too
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features pgpalisade-fuzz/targets --locked -- -D warnings
	$(CARGO) clippy --package pgpalisade-authority --no-default-features --locked -- -D warnings

fuzz-build: packages-build ## Build the fuzz targets (needs nightly and cargo-fuzz; `make check` compiles them without)
	$(CARGO) +nightly fuzz build --dev --features libfuzzer

# The end-to-end tests run the binary, and `cargo test` alone would not build it.
build: packages-test
	$(CARGO) build --workspace --bins --locked

packages-build packages-test: packages-%:
	@scripts/install-packages $*
