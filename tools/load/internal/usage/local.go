package usage

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Local reads the usage of processes of this machine, from the kernel's accounting.
//
// CPU time is that of the process's CPU clock (clock_getcpuclockid): exact to the nanosecond, complete with threads that have
// ended, and read without disturbing the process. The files below /proc/<pid> know less: stat counts in steps of 10 ms, and the
// sum over task/*/schedstat forgets threads that have ended. It works on Linux alone; elsewhere Read returns an error that says so.
type Local struct {
	// Processes returns the ids of the processes to read, by name. It must be safe for concurrent use.
	Processes func() map[string]int
}

// Read implements [Reader].
func (l Local) Read(context.Context) (map[string]Usage, error) {
	all := map[string]Usage{}
	for name, pid := range l.Processes() {
		u, err := ofProcess(pid)
		if err != nil {
			return nil, fmt.Errorf("read what %s uses: %w", name, err)
		}
		all[name] = u
	}
	return all, nil
}

// ResetPeaks implements [Reader].
func (l Local) ResetPeaks(context.Context) error {
	for name, pid := range l.Processes() {
		const peak = "5" // see proc(5), clear_refs
		if err := os.WriteFile(procFile(pid, "clear_refs"), []byte(peak), 0); err != nil {
			return fmt.Errorf("reset the peak of the memory of %s: %w", name, err)
		}
	}
	return nil
}

func ofProcess(pid int) (Usage, error) {
	cpu, err := cpuTime(pid)
	if err != nil {
		return Usage{}, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	u := Usage{CPU: cpu}
	for file, fields := range map[string]map[string]*int64{
		"status": {"VmRSS:": &u.Memory, "VmHWM:": &u.PeakMemory},
		"io":     {"rchar:": &u.Received, "wchar:": &u.Sent},
	} {
		content, err := os.ReadFile(procFile(pid, file))
		if err != nil {
			return Usage{}, fmt.Errorf("accounting of process %d: %w", pid, err)
		}
		if err := parse(string(content), fields); err != nil {
			return Usage{}, fmt.Errorf("accounting of process %d: %s: %w", pid, file, err)
		}
	}
	return u, nil
}

// parse finds the numbers that follow keys, in lines such as "VmRSS:   4260 kB" or "rchar: 12", in bytes.
func parse(content string, fields map[string]*int64) error {
	found := 0
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		field, wanted := fields[words[0]]
		if !wanted {
			continue
		}
		number, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return fmt.Errorf("%s is no number: %w", words[0], err)
		}
		if len(words) > 2 && words[2] == "kB" {
			number *= 1024
		}
		*field = number
		found++
	}
	if found < len(fields) {
		return fmt.Errorf("has %d of %d figures", found, len(fields))
	}
	return nil
}

func procFile(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }
