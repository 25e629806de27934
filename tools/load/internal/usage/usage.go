// Package usage reads what processes have used: CPU time, memory and bytes, from the accounting of this machine for
// processes that run here, and from their own metrics for those of a cluster.
package usage

import (
	"context"
	"time"
)

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

// Add returns the sum of what two processes have used. Peaks add up as if both had been at the same time.
func (u Usage) Add(other Usage) Usage {
	return Usage{
		CPU: u.CPU + other.CPU, Memory: u.Memory + other.Memory, PeakMemory: u.PeakMemory + other.PeakMemory,
		Received: u.Received + other.Received, Sent: u.Sent + other.Sent,
	}
}

// Reader reads usages. Implementations are safe for concurrent use.
type Reader interface {
	// Read returns the usage of each service, the API server and etcd, by the names of package target. What cannot be known in
	// that place, such as etcd in a cluster, is missing. A service of several replicas is their sum.
	Read(ctx context.Context) (map[string]Usage, error)
	// ResetPeaks makes PeakMemory begin anew.
	ResetPeaks(ctx context.Context) error
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
