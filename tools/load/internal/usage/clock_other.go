//go:build !linux

package usage

import (
	"errors"
	"time"
)

// cpuTime has nothing to read.
func cpuTime(int) (time.Duration, error) {
	return 0, errors.New("the accounting of processes is read on Linux alone: run this on Linux, or measure a cluster with --kubeconfig")
}
