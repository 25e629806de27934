package obligation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNext compares all of next with testdata/next.table.
func TestNext(t *testing.T) {
	file := filepath.Join("testdata", "next.table")
	table := fmt.Sprintf("%-15s", "")

	for p := range phases {
		table += fmt.Sprintf(" %-9s", Phase(p)) //nolint:gosec // there are a few
	}

	table = strings.TrimRight(table, " ") + "\n"

	for e := range events {
		row := fmt.Sprintf("%-15s", Event(e)) //nolint:gosec // there are a few
		for p := range phases {
			row += fmt.Sprintf(" %-9s", next(Phase(p), Event(e))) //nolint:gosec // there are a few
		}

		table += strings.TrimRight(row, " ") + "\n"
	}

	if *update {
		require.NoError(t, os.WriteFile(file, []byte(table), 0o600))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), table)
}
