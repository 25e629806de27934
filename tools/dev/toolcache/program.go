// Package toolcache builds a Go program once and keeps it in the user's cache.
//
// The inputs identify a program: the files that pin its dependencies, its source files, and its linker flags. Its directory in the cache is
// named by their hash, so a change yields a new directory. An existing directory is complete, because it is built elsewhere and renamed,
// under a lock.
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

// Program describes a program to build. The zero value is invalid.
type Program struct {
	// Name is the slash-separated directory of the program in the cache.
	Name string
	// Version appears in the directory name and in the progress. The hash, not Version, distinguishes versions.
	Version string
	// Module is the directory of the module whose go.mod pins the program.
	Module string
	// Modfile replaces go.mod, as the go command's flag -modfile does: a file in Module whose name ends in .mod, with a .sum file beside
	// it. Empty for go.mod.
	Modfile string
	// Package is the import path to build, or a directory of the module that starts with "./".
	Package string
	// Binary is the file name of the executable.
	Binary string
	// Links are further names of the executable, created as symbolic links.
	Links []string
	// LDFlags are added to -s -w for the linker.
	LDFlags string
}

// hash returns a hash of all inputs of the executable, in 12 hex digits.
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
			continue // a module without dependencies has no go.sum
		}

		if err != nil {
			return "", fmt.Errorf("hash the source of %s: %w", p.Name, err)
		}
		write(filepath.Base(name))
		write(string(content))
	}

	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// dir returns the directory of the program in the cache.
func (p Program) dir(cache string) (string, error) {
	hash, err := p.hash()
	if err != nil {
		return "", err
	}

	return filepath.Join(cache, filepath.FromSlash(p.Name), p.Version+"-"+hash), nil
}

// completeIn reports whether dir contains an executable for every name of the program.
func (p Program) completeIn(dir string) bool {
	for _, name := range append([]string{p.Binary}, p.Links...) {
		if !Executable(filepath.Join(dir, name)) {
			return false
		}
	}

	return true
}

// Executable reports whether path is an executable file or a link to one.
func Executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// args returns the arguments of the go command, with the flag -modfile if necessary. The first argument is the go subcommand.
func (p Program) args(command string, rest ...string) []string {
	pinned := []string{command, "-mod=readonly"}
	if p.Modfile != "" {
		pinned = append(pinned, "-modfile="+p.Modfile)
	}

	return append(pinned, rest...)
}
