// Command chart writes the generated templates of the Helm chart. It runs in the root of the repository.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/clusterring/clusterring/tools/chart"
)

func main() {
	if err := run("charts/clusterring/templates"); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run replaces the generated templates in a directory.
func run(dir string) error {
	files, err := chart.Generate(".")
	if err != nil {
		return err
	}

	old, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	for _, file := range old {
		content, unread := os.ReadFile(file) //nolint:gosec // of the chart
		if err = errors.Join(err, unread); strings.HasPrefix(string(content), chart.Generated) {
			err = errors.Join(err, os.Remove(file))
		}
	}

	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644)) //nolint:gosec // everybody may read it
	}

	return err
}
