// Package machine describes the machine of a run.
package machine

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// This describes this machine. On systems other than Linux, some fields are empty.
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

// field returns the value of the first line of the form "name: value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}

	return ""
}

// read returns the content of a file, empty if it cannot be read.
func read(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}

	return string(content)
}
