//go:build !linux

package usage

import (
	"errors"
	"time"
)

// cpuTime is not supported.
func cpuTime(int) (time.Duration, error) {
	return 0, errors.New("process accounting works only on Linux: run this on Linux")
}
