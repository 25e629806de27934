package usage

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime reads the CPU clock of a process.
func cpuTime(pid int) (time.Duration, error) {
	// As clock_getcpuclockid(3) builds the id of a clock: the low bits select a process clock that counts scheduled time.
	const scheduled = 2

	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, err //nolint:wrapcheck // wrapped by the caller
	}

	return time.Duration(ts.Nano()), nil
}
