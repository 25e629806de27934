package usage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Reader reads the usage of processes of this machine from the kernel's accounting. It is safe for concurrent use.
//
// It reads the CPU time from the CPU clock of the process (clock_getcpuclockid): exact to the nanosecond, including threads that have
// ended, and without disturbing the process. The files below /proc/<pid> are less exact: stat counts in steps of 10 ms, and the sum over
// task/*/schedstat omits threads that have ended. It works on Linux only; on other systems Read returns an error.
type Reader struct {
	// Processes returns the ids of the processes to read, by name. It must be safe for concurrent use.
	Processes func() map[string]int
}

// Read returns the usage of each process by name.
func (r Reader) Read() (map[string]Usage, error) {
	all := map[string]Usage{}

	for name, pid := range r.Processes() {
		u, err := ofProcess(pid)
		if err != nil {
			return nil, fmt.Errorf("read the usage of %s: %w", name, err)
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

// ResetPeaks restarts the measurement of PeakMemory.
func (r Reader) ResetPeaks() error {
	for name, pid := range r.Processes() {
		const peak = "5" // see proc(5), clear_refs
		if err := os.WriteFile(procFile(pid, "clear_refs"), []byte(peak), 0); err != nil {
			return fmt.Errorf("reset the peak memory of %s: %w", name, err)
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
