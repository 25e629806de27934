package toolcache

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const source = "package main\n\nfunc main() { println(\"hello\") }\n"

// program writes a small module and returns it as a program.
func program(t *testing.T, source string) Program {
	t.Helper()
	module := t.TempDir()
	write(t, filepath.Join(module, "go.mod"), "module example.org/hello\n\ngo 1.26.0\n")
	write(t, filepath.Join(module, "main.go"), source)

	return Program{Name: "test/hello", Version: "v1", Module: module, Package: "./.", Binary: "hello", Links: []string{"hallo"}}
}

func write(t *testing.T, name, content string) {
	t.Helper()

	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// countingGo returns a go command that notes each of its runs in a file, one line each.
func countingGo(t *testing.T) (command, runs string) {
	t.Helper()
	dir := t.TempDir()

	command, runs = filepath.Join(dir, "go"), filepath.Join(dir, "runs")
	if err := os.WriteFile(command, []byte("#!/bin/sh\necho \"$1\" >>'"+runs+"'\nexec go \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	return command, runs
}

func count(t *testing.T, file, line string) int {
	t.Helper()

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	return strings.Count(string(content), line+"\n")
}

func build(t *testing.T, b *Builder, p Program) string {
	t.Helper()

	dir, err := b.Build(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}

	return dir
}

func TestBuildOnceByHash(t *testing.T) {
	p, cache := program(t, source), t.TempDir()

	dir := build(t, &Builder{Cache: cache}, p)
	for _, name := range []string{"hello", "hallo"} {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, name)).CombinedOutput(); err != nil || string(out) != "hello\n" {
			t.Errorf("%s printed %q, %v", name, out, err)
		}
	}

	if again := build(t, &Builder{Cache: cache, Go: "/no/go/is/needed"}, p); again != dir {
		t.Errorf("the second call returned %s, the first %s", again, dir)
	}

	write(t, filepath.Join(p.Module, "main.go"), strings.Replace(source, "hello", "changed", 1))

	if changed := build(t, &Builder{Cache: cache}, p); changed == dir {
		t.Error("changed source has the directory of the old source")
	}
}

func TestBuildRepairsWhatIsIncomplete(t *testing.T) {
	p, b := program(t, source), &Builder{Cache: t.TempDir()}

	dir := build(t, b, p)
	if err := os.Remove(filepath.Join(dir, "hello")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(dir), filepath.Base(dir)+".building"), "left by a build that was killed")

	if !p.completeIn(build(t, b, p)) {
		t.Error("the program is not complete")
	}
}

func TestConcurrentCallersBuildOnce(t *testing.T) {
	p, cache := program(t, source), t.TempDir()
	command, runs := countingGo(t)

	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			if _, err := (&Builder{Cache: cache, Go: command}).Build(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()

	if n := count(t, runs, "build"); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestFailedBuildExplainsAndLeavesNothing(t *testing.T) {
	p, b := program(t, "package main\n\nfunc main() { undefined() }\n"), &Builder{Cache: t.TempDir()}

	dir, err := p.dir(b.Cache)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := b.Build(t.Context(), p); err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("the error does not say what the compiler said: %v", err)
	}

	for _, left := range []string{dir, dir + ".building"} {
		if _, err := os.Stat(left); err == nil {
			t.Errorf("%s is left behind", left)
		}
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	p, cache := program(t, source), t.TempDir()

	unlock, err := lock(t.Context(), filepath.Join(cache, "test", "hello", ".lock"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("told to stop")
	cancel(stop)

	if _, err := (&Builder{Cache: cache}).Build(ctx, p); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestBuildInRefusesADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "precious"), "")

	err := (&Builder{}).BuildIn(t.Context(), program(t, source), dir)
	if err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("got %v", err)
	}

	fresh := filepath.Join(dir, "fresh")
	if err := (&Builder{}).BuildIn(t.Context(), program(t, source), fresh); err != nil || !Executable(filepath.Join(fresh, "hallo")) {
		t.Errorf("the program is not in the new directory: %v", err)
	}
}

func TestProgressSaysWhatHappens(t *testing.T) {
	var out strings.Builder

	now := time.Unix(0, 0)
	ticks := make(chan time.Time)
	p := &Progress{Out: &out, Ticks: ticks, Now: func() time.Time { return now }}
	finish := p.start("hello v1")
	p.phase("compiling %d packages", 7)

	now = now.Add(65 * time.Second)
	p.set("compiling, %d packages so far", 3)
	ticks <- now
	finish(nil)

	want := "hello v1: compiling 7 packages (0s)\nhello v1: compiling, 3 packages so far (65s)\nhello v1: done (65s)\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

func TestProgressSaysHowLongTheRestMayTake(t *testing.T) {
	var out strings.Builder

	now := time.Unix(0, 0)

	p := &Progress{Out: &out, Now: func() time.Time { return now }}
	defer p.start("hello v1")(nil)

	now = now.Add(time.Hour) // of another phase
	p.phase("compiling %d packages", 3000)

	for _, at := range []struct{ seconds, done int }{{20, 10}, {100, 1000}, {100, 2900}, {0, 3100}} {
		now = now.Add(time.Duration(at.seconds) * time.Second)
		p.compiled(at.done, 3000)
		p.write(false)
	}

	want := `hello v1: compiling 3000 packages (3600s)
hello v1: compiling, 10 packages so far, at most 3000 (3620s)
hello v1: compiling, 1000 packages so far, at most 3000, about 4 min left (3720s)
hello v1: compiling, 2900 packages so far, at most 3000, less than a minute left (3820s)
hello v1: compiling, 3100 packages so far, at most 3000, less than a minute left (3820s)
`
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", out.String(), want)
	}
}

// Whatever else is in the directory, what pins the program is the file that it names.
func TestModfilePinsTheProgram(t *testing.T) {
	p := program(t, source)
	write(t, filepath.Join(p.Module, "hello.mod"), "module example.org/other\n\ngo 1.26.0\n")

	plain, err := p.dir("cache")
	if err != nil {
		t.Fatal(err)
	}

	p.Modfile = "hello.mod"
	pinned := build(t, &Builder{Cache: t.TempDir()}, p)

	out, err := exec.CommandContext(t.Context(), "go", "version", "-m", filepath.Join(pinned, "hello")).Output()
	if err != nil || !strings.Contains(string(out), "example.org/other") {
		t.Errorf("built as:\n%s%v", out, err)
	}

	if filepath.Base(pinned) == filepath.Base(plain) {
		t.Error("what go.mod pins and what hello.mod pins have one directory")
	}
	write(t, filepath.Join(p.Module, "hello.sum"), "")

	summed, err := p.dir("cache")
	if err != nil {
		t.Fatal(err)
	}

	if filepath.Base(summed) == filepath.Base(pinned) {
		t.Error("hello.sum does not count")
	}
}
