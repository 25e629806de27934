package usage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/clusterring/clusterring/tools/lab/localplane/metrics"
)

// Metrics reads the usage of processes from what they say of themselves at /metrics. Make it with [NewMetrics].
//
// CPU time is as exact as the process tells: 10 ms. PeakMemory is the highest that a Read has seen, which is less than the true
// peak. Asking costs the process some CPU time.
type Metrics struct {
	sources func(context.Context) (map[string][]string, error)

	mu    sync.Mutex
	peaks map[string]int64
}

// NewMetrics returns a reader. The function returns the text of each replica's /metrics, by service.
func NewMetrics(sources func(context.Context) (map[string][]string, error)) *Metrics {
	return &Metrics{sources: sources, peaks: map[string]int64{}}
}

// Read implements [Reader].
func (m *Metrics) Read(ctx context.Context) (map[string]Usage, error) {
	texts, err := m.sources(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]Usage{}
	for name, replicas := range texts {
		var sum Usage
		for _, text := range replicas {
			u, err := ofText(text)
			if err != nil {
				return nil, fmt.Errorf("read what %s uses: %w", name, err)
			}
			sum = sum.Add(u)
		}
		sum.PeakMemory = m.peak(name, sum.Memory)
		all[name] = sum
	}
	return all, nil
}

// ResetPeaks implements [Reader].
func (m *Metrics) ResetPeaks(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.peaks)
	return nil
}

func (m *Metrics) peak(name string, memory int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peaks[name] = max(m.peaks[name], memory)
	return m.peaks[name]
}

func ofText(text string) (Usage, error) {
	var u Usage
	cpu, err := metrics.Sum(text, "process_cpu_seconds_total")
	if err != nil {
		return u, err
	}
	u.CPU = time.Duration(cpu * float64(time.Second))
	for name, field := range map[string]*int64{
		"process_resident_memory_bytes": &u.Memory, "process_network_receive_bytes_total": &u.Received, "process_network_transmit_bytes_total": &u.Sent,
	} {
		value, err := metrics.Sum(text, name)
		if err != nil {
			return u, err
		}
		*field = int64(value)
	}
	return u, nil
}
