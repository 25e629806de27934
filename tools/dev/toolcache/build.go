package toolcache

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Builder builds programs into one cache. Use one Builder for one build at a time; any number of builders and
// processes may share a cache.
type Builder struct {
	// Cache is the directory below which programs are kept. See DefaultCache.
	Cache string
	// Go is the go command; empty for "go".
	Go string
	// Progress reports the progress; nil means none.
	Progress *Progress
}

// DefaultCache returns the directory "clusterring" in the user's cache (XDG_CACHE_HOME or the platform's default).
func DefaultCache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}

	return filepath.Join(dir, "clusterring"), nil
}

// Build returns the directory of the program, and builds the program first if it is not in the cache. Concurrent callers wait for the first
// one. After an error or the end of ctx, the cache contains no incomplete program.
func (b *Builder) Build(ctx context.Context, p Program) (dir string, err error) {
	dir, err = p.dir(b.Cache)
	if err != nil || p.completeIn(dir) {
		return dir, err
	}

	finish := b.Progress.start(strings.TrimSpace(p.Binary + " " + p.Version))
	defer func() { finish(err) }()

	unlock, err := lock(ctx, filepath.Join(filepath.Dir(dir), ".lock"), func() {
		b.Progress.phase("waiting for another process that builds this program")
	})
	if err != nil {
		return "", err
	}
	defer unlock()

	if p.completeIn(dir) {
		return dir, nil
	}

	return dir, b.replace(ctx, p, dir)
}

// BuildIn builds the program into dir, which must be empty or missing, without the cache.
func (b *Builder) BuildIn(ctx context.Context, p Program, dir string) (err error) {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: choose a new directory", dir)
	}

	finish := b.Progress.start(strings.TrimSpace(p.Binary + " " + p.Version))
	defer func() { finish(err) }()

	return b.replace(ctx, p, dir)
}

// replace builds beside dir and renames the result. The caller holds the lock, so anything beside dir was left behind by a killed process.
func (b *Builder) replace(ctx context.Context, p Program, dir string) error {
	building := dir + ".building"
	if err := os.RemoveAll(building); err != nil {
		return fmt.Errorf("remove what an earlier build left: %w", err)
	}

	if err := b.buildTo(ctx, p, building); err != nil {
		return errors.Join(err, os.RemoveAll(building))
	}

	if err := os.RemoveAll(dir); err != nil { // incomplete
		return fmt.Errorf("remove an incomplete build: %w", err)
	}

	if err := os.Rename(building, dir); err != nil {
		return fmt.Errorf("put the build of %s in place: %w", p.Name, err)
	}

	return nil
}

func (b *Builder) buildTo(ctx context.Context, p Program, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory for %s: %w", p.Name, err)
	}

	total, err := b.download(ctx, p)
	if err != nil {
		return err
	}

	if err := b.compile(ctx, p, filepath.Join(dir, p.Binary), total); err != nil {
		return err
	}

	for _, link := range p.Links {
		if err := os.Symlink(p.Binary, filepath.Join(dir, link)); err != nil {
			return fmt.Errorf("link %s to %s: %w", link, p.Binary, err)
		}
	}

	return nil
}

// download fetches the modules of the program's packages, and counts the packages.
func (b *Builder) download(ctx context.Context, p Program) (packages int, err error) {
	b.Progress.phase("looking up modules")

	modules := 0
	packageList, err := b.run(ctx, p, func(line string) {
		if strings.HasPrefix(line, "go: downloading ") {
			modules++
			b.Progress.set("downloading modules, %d so far", modules)
		}
	}, p.args("list", "-deps", p.Package)...)

	return bytes.Count(packageList, []byte("\n")), err
}

func (b *Builder) compile(ctx context.Context, p Program, binary string, total int) error {
	b.Progress.phase("compiling %d packages", total)

	compiled := 0
	_, err := b.run(ctx, p, func(string) {
		compiled++
		b.Progress.compiled(compiled, total)
	}, p.args("build", "-v", "-trimpath", "-buildvcs=false",
		"-ldflags", strings.TrimSpace("-s -w "+p.LDFlags), "-o", binary, p.Package)...)

	return err
}

// run runs the go command for the program and returns its standard output. It passes each line of standard error to each. Lines other than
// progress are part of the error.
func (b *Builder) run(ctx context.Context, p Program, each func(line string), args ...string) ([]byte, error) {
	command := b.Go
	if command == "" {
		command = "go"
	}

	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // lets go remove its temporary files
	cmd.Dir = p.Module
	// Build for this machine, whatever the target of the caller, and outside of a workspace.
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)

	var stdout bytes.Buffer

	cmd.Stdout = &stdout

	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", p.Name, err)
	}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("build %s: %w", p.Name, err)
	}

	said := explain(stderr, each)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("build %s: go %s: %w\n%s", p.Name, args[0], err, said)
	}

	return stdout.Bytes(), nil
}

// explain passes each line to each, and returns the last lines that may explain a failure.
func explain(stderr io.Reader, each func(line string)) string {
	const enough = 40

	var said []string

	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		line := lines.Text()
		each(line)

		if !strings.HasPrefix(line, "go: downloading ") && strings.ContainsAny(line, " :") {
			said = append(said, line)
		}
	}

	return strings.Join(said[max(0, len(said)-enough):], "\n")
}
