// Package usage reads how much CPU time, memory, and I/O the processes of this machine use.
package usage

import "time"

// Usage is what a process has used since its start.
type Usage struct {
	// CPU is the user and system time of all threads, including ended ones.
	CPU time.Duration
	// Memory is the resident memory in bytes. PeakMemory is its maximum since the start or [Reader.ResetPeaks].
	Memory, PeakMemory int64
	// Received and Sent are the bytes read and written: for services nearly only encrypted network traffic, for etcd also files.
	Received, Sent int64
}

// Since returns the usage between before and u: the differences of the counters, and the memory of u.
func (u Usage) Since(before Usage) Usage {
	u.CPU -= before.CPU
	u.Received -= before.Received
	u.Sent -= before.Sent

	return u
}

// Difference returns the usage of each process between two reads. It omits processes that are missing in either.
func Difference(before, after map[string]Usage) map[string]Usage {
	used := map[string]Usage{}

	for name, then := range before {
		if now, ok := after[name]; ok {
			used[name] = now.Since(then)
		}
	}

	return used
}
