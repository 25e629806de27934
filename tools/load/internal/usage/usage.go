// Package usage reads how much CPU time, memory, and I/O the processes of this machine use.
package usage

import "time"

// Usage is what one service has used since it began. What a source does not tell is 0.
type Usage struct {
	// CPU is user and system time of all its threads, those that have ended too.
	CPU time.Duration
	// Memory is resident now, PeakMemory was at its highest since the start or [Reader.ResetPeaks], both in bytes.
	Memory, PeakMemory int64
	// Received and Sent are bytes that it has read and written. Of a service nearly all of it is network, encrypted; of etcd it
	// is its files, too.
	Received, Sent int64
}

// Since returns what was used between before and u: the differences of what only grows, and memory as it is in u.
func (u Usage) Since(before Usage) Usage {
	u.CPU -= before.CPU
	u.Received -= before.Received
	u.Sent -= before.Sent
	return u
}

// Difference returns what each service has used between two reads. One that is missing from either is left out.
func Difference(before, after map[string]Usage) map[string]Usage {
	used := map[string]Usage{}
	for name, then := range before {
		if now, ok := after[name]; ok {
			used[name] = now.Since(then)
		}
	}
	return used
}
