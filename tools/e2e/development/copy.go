package development

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Copy copies the files that git tracks below root, with their content on disk, to the directory to, which it creates if necessary. It skips
// tracked files that do not exist.
func Copy(ctx context.Context, root, to string) error {
	names, err := exec.CommandContext(ctx, "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("list the files that git tracks in %s: %w", root, err)
	}

	for name := range bytes.SplitSeq(names, []byte{0}) {
		if len(name) == 0 {
			continue
		}

		if err := copyFile(filepath.Join(root, string(name)), filepath.Join(to, string(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("copy the tree of %s: %w", root, err)
		}
	}

	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}

	content, err := os.ReadFile(from) //nolint:gosec // a file of the source
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}

	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // source that anybody may read
		return err //nolint:wrapcheck // it names the directory
	}

	return os.WriteFile(to, content, info.Mode().Perm()) //nolint:wrapcheck // it names the file
}
