package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// CheckBinaries returns an error that lists the binaries missing in the directory, and how to build them.
func CheckBinaries(dir string, names ...string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && !info.IsDir()
	})
	if len(missing) > 0 {
		return fmt.Errorf("missing in %s: %v; run make build, or set --bin-dir", dir, missing)
	}

	return nil
}
