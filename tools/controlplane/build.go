package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// program is a program of this module, in cmd.
type program struct {
	name string
	// links are further names of the executable.
	links []string
}

// controlPlane is the control plane as one program, and kubectl is kubectl.
var (
	controlPlane = program{"controlplane", []string{"etcd", "kube-apiserver", "kube-controller-manager"}}
	kubectl      = program{"kubectl", nil}
)

// stamps are the linker flags that stamp the version, as in the build of Kubernetes.
func stamps() string {
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X", pkg+".gitVersion="+kubernetesVersion, "-X", pkg+".gitMajor="+kubernetesMajor,
			"-X", pkg+".gitMinor="+kubernetesMinor, "-X", pkg+".gitTreeState=clean")
	}

	return strings.Join(flags, " ")
}

// cached returns the directory of the program in the user's cache, and builds it first if it is not there. The
// directory is named after all that goes into the build, and what has its name is complete. Concurrent callers wait for
// the first one.
func (p program) cached(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}

	hash, err := p.hash()
	if err != nil {
		return "", err
	}

	all := filepath.Join(cache, "clusterring", p.name)
	dir := filepath.Join(all, kubernetesVersion+"-"+hash)

	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	if err := os.MkdirAll(all, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of %s: %w", p.name, err)
	}

	lock, err := os.Create(filepath.Join(all, ".lock"))
	if err != nil {
		return "", fmt.Errorf("lock the cache of %s: %w", p.name, err)
	}
	defer func() { _ = lock.Close() }() // which unlocks it

	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the cache of %s: %w", p.name, err)
	}

	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}

	return dir, p.build(ctx, dir, progress)
}

// hash returns a hash of all that goes into the program, in 12 hex digits.
func (p program) hash() (string, error) {
	sources, err := filepath.Glob(filepath.Join("cmd", p.name, "*.go"))
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", p.name, err)
	}

	h := sha256.New()
	_, _ = fmt.Fprintln(h, runtime.GOOS, runtime.GOARCH, p, stamps()) // a hash never fails to write

	for _, name := range append(sources, "go.mod", "go.sum") {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("hash the source of %s: %w", p.name, err)
		}

		_, _ = fmt.Fprintln(h, name, len(content), string(content))
	}

	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// build builds the program beside dir, and gives it that name when it is complete.
func (p program) build(ctx context.Context, dir string, progress io.Writer) error {
	building := dir + ".building"
	if err := os.RemoveAll(building); err != nil {
		return fmt.Errorf("remove what an earlier build left: %w", err)
	}

	err := p.compile(ctx, filepath.Join(building, p.name), progress)

	for _, link := range p.links {
		if err == nil {
			err = os.Symlink(p.name, filepath.Join(building, link))
		}
	}

	if err == nil {
		err = os.Rename(building, dir)
	}

	if err != nil {
		return fmt.Errorf("build %s: %w", p.name, errors.Join(err, os.RemoveAll(building)))
	}

	return nil
}

// compile runs the go command for this machine, which prints each package that it compiles. The error contains the last
// lines.
func (p program) compile(ctx context.Context, output string, progress io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", stamps(),
		"-o", output, "./cmd/"+p.name)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go remove its temporary files

	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)

	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("go build: %w", err)
	}

	if err := cmd.Start(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}

	var said []string

	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if said = append(said, lines.Text()); len(said)%100 == 0 {
			_, _ = fmt.Fprintf(progress, "%s %s: %d packages are built\n", p.name, kubernetesVersion, len(said))
		}
	}

	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, strings.Join(said[max(0, len(said)-40):], "\n"))
	}

	return nil
}
