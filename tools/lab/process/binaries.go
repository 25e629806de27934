package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// CheckBinaries returns an error that names those binaries that the directory does not hold, and how to build them.
func CheckBinaries(dir string, names ...string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && !info.IsDir()
	})
	if len(missing) > 0 {
		return fmt.Errorf("not built yet, in %s: %v; run make build, or name the directory with --bin-dir", dir, missing)
	}
	return nil
}
