//go:build linux || darwin || freebsd || netbsd || openbsd

package history

import "golang.org/x/sys/unix"

// monotonic returns the time since the machine started.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}

	return ts.Nano()
}
