// Package toolcache builds a Go program once and keeps it in the user's cache.
//
// A program is known by what goes into it: the files that pin its dependencies, its own source files,
// and how it is linked. The directory in the cache carries the hash of these, so a change gives a new directory, and a
// directory that exists is complete: it is built aside and renamed into place, under a lock.
package toolcache

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Program says what to build and what to call it. The zero value builds nothing.
type Program struct {
	// Name is the program's directory under the cache, slash-separated.
	Name string
	// Version is shown in the directory's name and in the progress; the hash tells versions apart, not this.
	Version string
	// Module is the directory of the module whose go.mod pins the program.
	Module string
	// Modfile pins the program in place of go.mod, as the go command's flag -modfile does: a file of Module whose name ends
	// in .mod, with a .sum beside it. Empty for go.mod.
	Modfile string
	// Package is what to build: an import path, or a directory of the module that starts with "./".
	Package string
	// Binary is the file name of the executable.
	Binary string
	// Links are further names of the executable, made as symbolic links.
	Links []string
	// LDFlags are added to -s -w for the linker.
	LDFlags string
}

// hash identifies everything that the executable depends on, in 12 hex digits.
func (p Program) hash() (string, error) {
	mod := filepath.Join(p.Module, cmp.Or(p.Modfile, "go.mod"))
	sum := strings.TrimSuffix(mod, ".mod") + ".sum"
	files := []string{mod, sum}
	if strings.HasPrefix(p.Package, "./") {
		own, err := filepath.Glob(filepath.Join(p.Module, filepath.FromSlash(p.Package), "*.go"))
		if err != nil {
			return "", fmt.Errorf("find the source of %s: %w", p.Name, err)
		}
		files = append(files, own...)
	}
	h := sha256.New()
	write := func(field string) { _, _ = fmt.Fprintf(h, "%d:%s,", len(field), field) } // a hash never fails to write
	for _, s := range []string{runtime.GOOS, runtime.GOARCH, p.Package, p.Binary, strings.Join(p.Links, " "), p.LDFlags} {
		write(s)
	}
	for _, name := range files {
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) && name == sum {
			continue // a module without dependencies has none
		}
		if err != nil {
			return "", fmt.Errorf("hash the source of %s: %w", p.Name, err)
		}
		write(filepath.Base(name))
		write(string(content))
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// dir is where the program lives under the cache.
func (p Program) dir(cache string) (string, error) {
	hash, err := p.hash()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, filepath.FromSlash(p.Name), p.Version+"-"+hash), nil
}

// completeIn reports whether every name of the program is an executable in dir.
func (p Program) completeIn(dir string) bool {
	for _, name := range append([]string{p.Binary}, p.Links...) {
		if !Executable(filepath.Join(dir, name)) {
			return false
		}
	}
	return true
}

// Executable reports whether path is a file (or a link to one) that may be executed.
func Executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// args returns the arguments of the go command, for what pins the program. The first names the go command's own command.
func (p Program) args(command string, rest ...string) []string {
	pinned := []string{command, "-mod=readonly"}
	if p.Modfile != "" {
		pinned = append(pinned, "-modfile="+p.Modfile)
	}
	return append(pinned, rest...)
}
