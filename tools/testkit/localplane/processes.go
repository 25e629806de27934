package localplane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
)

// programs are the programs of a control plane.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager"}

// Processes returns the ids of the running processes by program: etcd, kube-apiserver, and kube-controller-manager.
func (p *Plane) Processes() (map[string]int, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, fmt.Errorf("find the processes of the control plane: %w", err)
	}

	return programsOf(all, os.Getpid(), p.dir), nil
}

// programsOf returns the child processes that belong to the control plane of a state directory.
func programsOf(all map[int]processInfo, parent int, dir string) map[string]int {
	pids := map[string]int{}

	for pid, info := range all {
		path := info.args
		if end := strings.IndexAny(path, "\x00 "); end >= 0 {
			path = path[:end]
		}

		program := filepath.Base(path)
		if info.parent == parent && slices.Contains(programs, program) && namesPath(info.args, dir) {
			pids[program] = pid
		}
	}

	return pids
}

// namesPath reports whether args contain dir as a whole path: /tmp/a, /tmp/a/b, --x=/tmp/a, but not /tmp/ab.
func namesPath(args, dir string) bool {
	for rest := args; ; {
		_, after, found := strings.Cut(rest, dir)
		if !found {
			return false
		}

		if after == "" || strings.ContainsAny(after[:1], "/ ,:\x00") {
			return true
		}

		rest = after
	}
}

// processInfo describes a process.
type processInfo struct {
	parent, uid int
	args        string
}

// listProcesses reads /proc, or runs ps if /proc does not exist.
func listProcesses() (map[int]processInfo, error) {
	if _, err := os.Stat("/proc/self/cmdline"); err == nil {
		return readProc()
	}

	out, err := exec.Command("ps", "-axo", "pid=,ppid=,uid=,args=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}

	all := map[int]processInfo{}

	for line := range strings.Lines(string(out)) {
		var pid, parent, uid int
		if _, err := fmt.Sscan(line, &pid, &parent, &uid); err != nil {
			continue
		}

		all[pid] = processInfo{parent: parent, uid: uid, args: strings.TrimSpace(line)}
	}

	return all, nil
}

func readProc() (map[int]processInfo, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}

	all := map[int]processInfo{}

	for _, p := range processes {
		args, errOfArgs := p.CmdLine()
		stat, errOfStat := p.Stat()
		status, errOfStatus := p.NewStatus()

		if errors.Join(errOfArgs, errOfStat, errOfStatus) == nil { // otherwise, it has ended meanwhile
			all[p.PID] = processInfo{parent: stat.PPID, uid: int(status.UIDs[0]), args: strings.Join(args, "\x00")} //nolint:gosec // far from its limits
		}
	}

	return all, nil
}
