.DEFAULT_GOAL := help

VERSION    := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME   ?= 1m
FUZZCHECKS ?= 100000
MINUTES    ?= 30
CRASHES    ?= 200

TOOL := go tool -modfile=tools/go.mod

.PHONY: help
help: ## list what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: ## run it all on this machine, with nothing set
	go run ./cmd/limiter

# SQLite and the C library that it calls are C translated to Go. Most of their memory is not Go's, so the race detector finds
# nothing there, at more than twice the cost. Its driver and everything else are checked.
SQLITE_UNRACED := $(foreach c,sqlite/lib libc memory,-gcflags=modernc.org/$(c)=-race=false)

# -w: nobody debugs these programs, and linking is a third quicker without debug information.
# GOFLAGS also reaches the programs that tests build: with other flags all their imports would be compiled again.
# GORACE also reaches the programs that tests start: otherwise each would wait for a second before it ends.
# -p: tests often wait, so one package more than there are processors keeps the processors busy.
# The packages that wait longest come first, so that others work meanwhile; ./... tests none of them again.
# -vet=off: make check vets.
# The last line runs all histories of the engine's laws (see check in model_test.go), without the tests in engine_test, whose
# store would have to be compiled again.
.PHONY: test
test: ## run the tests, with a PostgreSQL and a NATS of their own
	race=$$(tools/race) && export GORACE=atexit_sleep_ms=0 GOFLAGS="$$(go env GOFLAGS) $$race $(SQLITE_UNRACED) -ldflags=-w" && \
		go test -p $$(($$(getconf _NPROCESSORS_ONLN) + 1)) -vet=off -timeout 6m ./e2e ./internal/bus ./internal/postgres ./...
	cd internal/engine && go test -vet=off -timeout 6m $$(go list -f '{{join .GoFiles " "}} {{join .TestGoFiles " "}}')

.PHONY: check
check: ## format, vet, lint and look for known vulnerabilities
	@unformatted=$$(gofmt -l .) && if [ -n "$$unformatted" ]; then \
		echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(TOOL) staticcheck ./...
	tools/vulncheck

.PHONY: build
build: ## build static binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: generate
generate: ## write the generated files again
	go generate ./...

BENCH := go test ./bench -run '^$$' -bench Table -benchtime 1x -timeout 30m -args

.PHONY: bench
bench: ## compare the limiter with others, and write the figures into docs/ (20 minutes)
	$(BENCH) -out docs -rounds 3 -seconds 2

.PHONY: bench-quick
bench-quick: ## the same, roughly, and only print the figures (2 minutes)
	$(BENCH) -rounds 1 -seconds 0.4

.PHONY: growth
growth: ## measure many live counters, cleanup and several workers, and write the figures into docs/ (10 minutes)
	go test ./bench -run '^$$' -bench Growth -benchtime 1x -timeout 30m -args -out docs -grow 10000000

.PHONY: soak
soak: ## serve a steady load for MINUTES=30, watch the table, and write the figures into docs/
	go test ./bench -run '^$$' -bench Soak -benchtime 1x -timeout 0 -args -out docs -minutes $(MINUTES)

.PHONY: alerts-load
alerts-load: ## publish 100,000 events a minute to alerters, and write the figures into docs/ (4 minutes)
	go test ./bench -run '^$$' -bench Alerts -benchtime 1x -timeout 30m -args -out docs -event-seconds 60

.PHONY: crashes
crashes: ## kill alerters, NATS and PostgreSQL CRASHES=200 times while events become alerts (15 minutes)
	go test -race ./internal/alerts -run TestAlertsSurviveCrashAtAnyMoment -count 1 -timeout 0 -v -args -schedules $(CRASHES)
	go test -race ./internal/alerts -run TestDaysAcrossDSTChange -count 1 -timeout 0 -v -args -days 28
	go test -race ./e2e -run TestAlertsSurviveCrashes -count 1 -timeout 0 -v -args -schedules $(CRASHES)

# Packages are found by what their tests import and declare, so that a new package needs no entry here. Only packages that
# import rapid know its flag.
.PHONY: fuzz
fuzz: ## try every property FUZZCHECKS=100000 times, and 8,800 histories of workers, then every fuzz target for FUZZTIME=1m
	@for dir in $$(grep -rl --include='*_test.go' '"pgregory.net/rapid"' . | xargs -r -n1 dirname | sort -u); do \
		(set -x; go test -count=1 -timeout 0 $$dir -rapid.checks=$(FUZZCHECKS)) || exit 1; \
	done
	go test -race -count=1 -timeout 0 ./internal/engine -run 'DespiteFailures|LeasedTokens|CacheOfTwo' -args -histories 40
	@grep -rn --include='*_test.go' '^func Fuzz[A-Z]' . | sed -E 's|^(.*)/[^/]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' | \
	while read -r dir target; do \
		(set -x; go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir </dev/null) || exit 1; \
	done

.PHONY: clean
clean: ## remove what was built (data/ stays)
	rm -rf bin
