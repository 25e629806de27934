package manifests_test

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestProgramsOfDocsCompile: whoever copies a whole program from docs/sharding-your-controller.md gets one that compiles.
func TestProgramsOfDocsCompile(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "docs/sharding-your-controller.md"))
	require.NoError(t, err)

	programs := fenced(string(content), "go")
	require.NotEmpty(t, programs)

	// They are shown to the go command as if they were part of the example, which has all that they import.
	module, err := filepath.Abs(filepath.Join(root, "tools/example"))
	require.NoError(t, err)
	scratch := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	args := []string{"build", "-overlay", filepath.Join(scratch, "overlay.json"), "-o", os.DevNull}

	for i, program := range programs {
		dir := fmt.Sprintf("documented%d", i)
		file := filepath.Join(scratch, dir+".go")
		require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
		overlay.Replace[filepath.Join(module, dir, "documented.go")] = file
		args = append(args, "./"+dir)
		formatted, err := format.Source([]byte(program))
		require.NoError(t, err)
		assert.Equal(t, string(formatted), program, "program %d of the page is not formatted", i+1)
	}

	content, err = json.Marshal(overlay)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(args[2], content, 0o600))

	build := exec.CommandContext(t.Context(), "go", args...)
	build.Dir = module
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
}

// fenced returns the blocks of the language in a page of Markdown.
func fenced(page, language string) []string {
	var blocks []string

	for {
		_, rest, ok := strings.Cut(page, "\n```"+language+"\n")
		if !ok {
			return blocks
		}

		block, after, _ := strings.Cut(rest, "\n```\n")
		blocks, page = append(blocks, block+"\n"), after
	}
}
