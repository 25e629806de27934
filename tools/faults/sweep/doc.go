// Package sweep holds the fault-injection runs, which are tests: make test-faults runs them.
//
// It decides which faults are injected where. Package faultrun executes each run.
package sweep
