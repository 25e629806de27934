// Package machine says on what machine a run is made.
package machine

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// This returns what is known of this machine. On other systems than Linux it knows less.
func This() result.Machine {
	return of(read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/sys/kernel/osrelease"))
}

func of(cpu, memory, release string) result.Machine {
	m := result.Machine{CPU: field(cpu, "model name"), Cores: runtime.GOMAXPROCS(0), OS: strings.TrimSpace(runtime.GOOS + " " + strings.TrimSpace(release))}
	kilobytes, _, _ := strings.Cut(field(memory, "MemTotal"), " ")
	if n, err := strconv.ParseInt(kilobytes, 10, 64); err == nil {
		m.MemoryBytes = n << 10
	}
	if m.CPU == "" {
		m.CPU = runtime.GOARCH
	}
	return m
}

// field returns what follows the name and a colon, in the first line that begins with it.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// read returns what a file holds; one that cannot be read holds nothing.
func read(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(content)
}
