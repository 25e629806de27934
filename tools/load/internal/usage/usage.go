// Package usage reads how much CPU time, memory, and I/O the processes of this machine use.
package usage

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Usage is what a process has used since its start.
type Usage struct {
	// CPU is the user and system time of all threads, including ended ones.
	CPU time.Duration
	// Memory is the resident memory in bytes. PeakMemory is its maximum.
	Memory, PeakMemory int64
	// Received and Sent are the bytes read and written: for services nearly only encrypted network traffic, for etcd also
	// files.
	Received, Sent int64
}

// Milliseconds returns the CPU time in milliseconds.
func (u Usage) Milliseconds() float64 { return float64(u.CPU) / float64(time.Millisecond) }

// Difference returns the usage of each process between two reads: the differences of the counters, and the memory of
// the second read. It omits processes that are missing in either.
func Difference(before, after map[string]Usage) map[string]Usage {
	used := map[string]Usage{}

	for name, then := range before {
		now, ok := after[name]
		if now.CPU < then.CPU { // it was started again
			then = Usage{}
		}

		if ok {
			now.CPU -= then.CPU
			now.Received -= then.Received
			now.Sent -= then.Sent
			used[name] = now
		}
	}

	return used
}

// Reader reads the usage of processes of this machine from the kernel's accounting. It returns the ids of the processes
// to read, by name, and must be safe for concurrent use.
//
// It reads the CPU time from the CPU clock of the process (clock_getcpuclockid): exact to the nanosecond, including
// threads that have ended, and without disturbing the process. The files below /proc/<pid> are less exact: stat counts
// in steps of 10 ms, and the sum over task/*/schedstat omits threads that have ended. It works on Linux only; on other
// systems Read returns an error.
type Reader func() map[string]int

// Read returns the usage of each process by name.
func (r Reader) Read() (map[string]Usage, error) {
	all := map[string]Usage{}

	for name, pid := range r() {
		u, err := ofProcess(pid)
		if err != nil {
			return nil, fmt.Errorf("read the usage of %s (process %d): %w", name, pid, err)
		}

		all[name] = u
	}

	return all, nil
}

// During returns what each process uses while do runs, and the error of do.
func (r Reader) During(do func() error) (map[string]Usage, error) {
	before, err := r.Read()
	if err != nil {
		return nil, err
	}

	if err := do(); err != nil {
		return nil, err
	}

	after, err := r.Read()

	return Difference(before, after), err
}

// CPU returns the CPU time that one process uses while do runs, in milliseconds.
func (r Reader) CPU(process string, do func() error) (float64, error) {
	used, err := r.During(do)
	if err != nil {
		return 0, err
	}

	own, ok := used[process]
	if !ok {
		return 0, fmt.Errorf("no usage of %s is known", process)
	}

	return own.Milliseconds(), nil
}

// ofProcess reads the usage of a process. It fails on other systems than Linux.
func ofProcess(pid int) (Usage, error) {
	// As clock_getcpuclockid(3) builds the id of a clock: the low bits select a process clock that counts scheduled time.
	const scheduled = 2

	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return Usage{}, fmt.Errorf("CPU clock, which only Linux has: %w", err)
	}

	process, err := procfs.NewProc(pid)
	if err != nil {
		return Usage{}, fmt.Errorf("accounting: %w", err)
	}

	status, err := process.NewStatus()
	if err != nil {
		return Usage{}, fmt.Errorf("memory: %w", err)
	}

	io, err := process.IO()
	if err != nil {
		return Usage{}, fmt.Errorf("I/O: %w", err)
	}

	//nolint:gosec // far from overflowing
	return Usage{
		CPU: time.Duration(ts.Nano()), Memory: int64(status.VmRSS), PeakMemory: int64(status.VmHWM),
		Received: int64(io.RChar), Sent: int64(io.WChar),
	}, nil
}
