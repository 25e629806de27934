// Package adopted changes the source of an operator as docs/adopt.md says, so that a test runs what the page shows.
package adopted

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Change replaces Old in a file by New.
type Change struct{ Old, New string }

// Changes returns the changes in a page of Markdown. Each block changes one file; a line @@ separates two changes of
// it.
func Changes(page string) [][]Change {
	var blocks [][]Change

	for _, block := range Blocks(page, "diff") {
		var changes []Change

		for hunk := range strings.SplitSeq(block, "@@\n") {
			var change Change

			for line := range strings.Lines(hunk) {
				if line[0] != '+' {
					change.Old += line[1:]
				}

				if line[0] != '-' {
					change.New += line[1:]
				}
			}

			changes = append(changes, change)
		}

		blocks = append(blocks, changes)
	}

	return blocks
}

// Blocks returns the fenced blocks of a language in a page of Markdown.
func Blocks(page, language string) []string {
	var blocks []string

	for _, rest := range strings.Split(page, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(rest, "\n```\n")
		blocks = append(blocks, block+"\n")
	}

	return blocks
}

// Apply changes the Go files below the directory. It returns an error unless exactly one of them has, once each, all
// that a block replaces.
func Apply(dir string, blocks [][]Change) error {
	for _, changes := range blocks {
		fits := map[string]string{} // the changed text by path

		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}

			content, err := os.ReadFile(path) //nolint:gosec // the caller names the directory
			if err != nil {
				return err //nolint:wrapcheck // wrapped below
			}

			text := string(content)
			for _, change := range changes {
				if strings.Count(text, change.Old) != 1 {
					return nil
				}

				text = strings.Replace(text, change.Old, change.New, 1)
			}

			fits[path] = text

			return nil
		})
		if err != nil {
			return fmt.Errorf("read the source: %w", err)
		}

		if len(fits) != 1 {
			return fmt.Errorf("%d files have what the page changes:\n%s", len(fits), changes[0].Old)
		}

		for path, text := range fits {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				return fmt.Errorf("write the changed source: %w", err)
			}
		}
	}

	return nil
}
