# Benchmarks and the load tool.

BENCH     ?= .
COUNT     ?= 6
SCALE     ?= full
OUT       ?= dist/load
BENCHTIME ?= 0.3s
# What runs for each object, admission request, or change of shards.
BENCHDIRS ?= $(addprefix services/internal/,key hashring membership) services/internal/admission services/assigner/webhook
BASELINE  ?= docs/benchmarks.txt
FUZZTIME  ?= 10s

##@ Measure

.PHONY: bench-load
bench-load: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/load ## Measure the cost of sharding, and compare it with the lowest possible cost (SCALE=small takes 10 minutes, full 35, million 55; OUT=directory of the report)
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/load run --bin-dir $(BIN) --assets "$$assets" --scale $(SCALE) --out $(OUT) $(ARGS)

.PHONY: evaluate
evaluate: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/shards $(BIN)/load ## Measure what load a ring carries with more shards, compared with shards without services (SCALE=small takes 6 minutes, full 8 hours; ONLY=regexp of ids; a run goes on where the last one ended; ARGS=--kubeconfig=FILE measures Pods on a cluster)
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/load evaluate --bin-dir $(BIN) --assets "$$assets" --scale $(SCALE) $(if $(ONLY),--only '$(ONLY)') $(ARGS)

.PHONY: bench
bench: go-present ## Run the benchmarks of the most frequent operations, in 3 minutes (BENCHDIRS=... BENCH=regexp COUNT=n BENCHTIME=0.3s)
	$(benchmarks)
	@benchstat=$$($(TOOL) benchstat) && "$$benchstat" dist/bench.txt

# Times are comparable only on the same machine, allocations on any machine.
.PHONY: bench-compare
bench-compare: go-present ## Run the benchmarks and compare the results with BASELINE (default: docs/benchmarks.txt)
	@[ -f '$(BASELINE)' ] || { echo 'error: $(BASELINE) does not exist: run make bench-baseline BASELINE=$(BASELINE)' >&2; exit 1; }
	$(benchmarks)
	@for file in '$(BASELINE)' dist/bench.txt; do printf '%s: on %s\n' "$$file" "$$(sed -n 's/^cpu: //p' "$$file" | sort -u)"; done
	@benchstat=$$($(TOOL) benchstat) && "$$benchstat" -ignore cpu,goos,goarch '$(BASELINE)' dist/bench.txt

.PHONY: bench-baseline
bench-baseline: go-present ## Run the benchmarks and store their output as BASELINE (to measure an edit, set BASELINE=dist/before.txt here and in bench-compare)
	$(benchmarks)
	@cp dist/bench.txt '$(BASELINE)' && echo 'This is the new $(BASELINE).'

# Each benchmark uses one core, so that times are CPU time and names are the same on every machine.
define benchmarks
	$(call step,benchmarks ($(COUNT) times each); their output is in dist/bench.txt)
	@mkdir -p dist && go test -run '^$$' -bench '$(BENCH)' -benchmem -cpu 1 -count $(COUNT) -benchtime $(BENCHTIME) $(BENCHDIRS:%=./%) >dist/bench.txt || \
		{ cat dist/bench.txt; exit 1; }
endef

.PHONY: fuzz
fuzz: go-present ## Run every fuzz test for FUZZTIME
	@grep -rl --include='*_test.go' '^func Fuzz' $(DIRS) | while IFS= read -r file; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file" | while IFS= read -r name; do \
			printf '==> fuzz %s in %s\n' "$$name" "$$(dirname "$$file")"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")" </dev/null || exit 1; \
		done || exit 1; done
