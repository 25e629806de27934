// Package sweep holds the fault-injection runs, which are tests: make test-faults runs them.
//
// It reads nothing, decides which faults are tried where, and leaves it to package faultrun to play each run.
package sweep
