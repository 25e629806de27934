package adopted_test

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/adopted"
)

const root = "../../.."

func read(t *testing.T, elements ...string) string {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)

	return string(content)
}

// numbers are those that the pages write as words.
var numbers = strings.Fields("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen")

// TestREADMEStatesTheLinesOfTheGuides: the README says how many lines a main function changes, for your own operator
// and for JobSet.
func TestREADMEStatesTheLinesOfTheGuides(t *testing.T) {
	program := adopted.Blocks(read(t, root, "docs/sharding-your-controller.md"), "go")[0]
	call := regexp.MustCompile(`(?s)\tmgr, err := shard\.NewManager\(.*?\n\t}\)\n`).FindString(program)
	require.NotEmpty(t, call)
	require.Contains(t, program, "/pkg/shard\"\n")

	own := strings.Count(call, "\n") + 1 // the import
	jobset := 0

	blocks := adopted.Changes(read(t, root, "docs/adopt.md"))
	for _, change := range blocks[len(blocks)-1] {
		jobset += change.Added
	}

	claim := fmt.Sprintf("%s lines for a controller [of your own](docs/sharding-your-controller.md), %s for [JobSet](docs/adopt.md)", numbers[own], numbers[jobset])
	words := strings.Join(strings.Fields(read(t, root, "README.md")), " ")
	require.True(t, strings.Contains(words, claim), "the README does not say: %s", claim) //nolint:testifylint // it would print the README
	require.Contains(t, read(t, root, "docs/adopt.md"),
		fmt.Sprintf("This is the change for JobSet, %s lines", numbers[jobset]))
}

// TestChangesOfTheGuideFitJobSet: what docs/adopt.md replaces is in the source of the version that tools/ requires.
// make e2e runs the result.
func TestChangesOfTheGuideFitJobSet(t *testing.T) {
	find := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/jobset")

	find.Dir, find.Env = filepath.Join(root, "tools"), append(os.Environ(), "GOWORK=off")
	output, err := find.Output()
	require.NoError(t, err)

	var source struct{ Dir string }
	require.NoError(t, json.Unmarshal(output, &source))

	dir := t.TempDir()

	for _, file := range []string{"main.go", "pkg/webhooks/jobset_webhook.go", "pkg/webhooks/pod_mutating_webhook.go"} {
		copied := filepath.Join(dir, filepath.Base(file))
		require.NoError(t, os.WriteFile(copied, []byte(read(t, source.Dir, file)), 0o600))
	}
	require.NoError(t, adopted.Apply(dir, adopted.Changes(read(t, root, "docs/adopt.md"))))

	changed := read(t, dir, "main.go")
	require.Contains(t, changed, "shard.NewManager(kubeConfig, options, shard.Options{")

	formatted, err := format.Source([]byte(changed))
	require.NoError(t, err)
	require.Equal(t, string(formatted), changed)

	require.ErrorContains(t, adopted.Apply(dir, adopted.Changes(read(t, root, "docs/adopt.md"))), "no file has",
		"it was changed already")
}
