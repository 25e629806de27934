// Command adopt changes the source of an operator as a page of the documentation says.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/clusterring/clusterring/tools/e2e/adopted"
)

func main() {
	page := flag.String("page", "docs/adopt.md", "`file` with the changes")
	dir := flag.String("dir", "", "`directory` of the source")
	flag.Parse()

	if err := run(*page, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(page, dir string) error {
	content, err := os.ReadFile(page) //nolint:gosec // the caller names the page
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}

	return adopted.Apply(dir, adopted.Changes(string(content)))
}
