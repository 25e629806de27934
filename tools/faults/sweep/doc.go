// Package sweep contains the fault runs as tests; make test-faults runs them.
//
// It decides which faults to inject where. Package faultrun executes each run.
package sweep
