package localplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
