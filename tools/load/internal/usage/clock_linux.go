package usage

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime reads the CPU clock of a process.
func cpuTime(pid int) (time.Duration, error) {
	// How clock_getcpuclockid(3) makes the id of a clock: the low bits say that it is of a process, and that it counts what the
	// scheduler has counted.
	const scheduled = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, err //nolint:wrapcheck // wrapped by the caller
	}
	return time.Duration(ts.Nano()), nil
}
