package walls

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected violations, want.txt in testdata/*.txtar")

// golden is the file of an archive that lists the violations in the others.
const golden = "want.txt"

// archives returns the archives in testdata, and the expected violations of each, by path.
func archives(t *testing.T) (all map[string]*txtar.Archive, want map[string]string) {
	t.Helper()

	paths, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, paths)

	all, want = map[string]*txtar.Archive{}, map[string]string{}

	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		require.NoError(t, err)

		last := archive.Files[len(archive.Files)-1]
		require.Equal(t, golden, last.Name, "the last file of %s", path)

		all[path], want[path] = archive, string(last.Data)
	}

	return all, want
}

// The repository itself respects its walls.
func TestRepository(t *testing.T) {
	found, err := Check(os.DirFS(filepath.Join("..", "..")))
	if err != nil {
		t.Fatal(err)
	}

	for _, v := range found {
		t.Error(v)
	}
}

// A zone whose directory or file was renamed would guard nothing.
func TestEveryZoneExists(t *testing.T) {
	for _, z := range house {
		dir := filepath.Join("..", "..", filepath.FromSlash(strings.TrimSuffix(z.dir, "/*")))
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("house.go speaks of %s, which does not exist: rename it there too", z.dir)
		}
	}
}

// Each archive in testdata is a small repository that crosses walls; want.txt lists where.
func TestCheckFindsViolations(t *testing.T) {
	all, want := archives(t)
	for path, archive := range all {
		t.Run(filepath.Base(path), func(t *testing.T) {
			repository, err := txtar.FS(archive)
			require.NoError(t, err)

			found, err := Check(repository)
			require.NoError(t, err)

			var got strings.Builder
			for _, v := range found {
				got.WriteString(v.String() + "\n")
			}

			if *update {
				archive.Files[len(archive.Files)-1].Data = []byte(got.String())
				require.NoError(t, os.WriteFile(path, txtar.Format(archive), 0o600))

				return
			}

			require.Equal(t, want[path], got.String(), "violations differ from %s", path)
		})
	}
}

// Every wall of the house is crossed somewhere in testdata, so that none is there for show.
func TestEveryRuleIsTested(t *testing.T) {
	_, want := archives(t)
	all := strings.Join(slices.Collect(maps.Values(want)), "")

	for _, z := range house {
		if !strings.Contains(all, z.rule) {
			t.Errorf("no case in testdata violates: %s", z.rule)
		}

		for _, b := range z.bans {
			if !strings.Contains(all, b.what) {
				t.Errorf("no case in testdata imports %s", b.what)
			}
		}
	}
}

func TestCheckReportsUnreadableSource(t *testing.T) {
	_, err := Check(fstest.MapFS{"broken.go": {Data: []byte("pakkage x")}})
	require.ErrorContains(t, err, "broken.go")
}
