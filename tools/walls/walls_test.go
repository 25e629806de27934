package walls

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the expected violations in testdata/*/want.txt")

// The repository itself respects its walls.
func TestRepository(t *testing.T) {
	found, err := Check(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}

	for _, v := range found {
		t.Error(v)
	}
}

// A zone whose directory was renamed would guard nothing.
func TestEveryZoneExists(t *testing.T) {
	for _, z := range house {
		dir := filepath.Join("..", "..", filepath.FromSlash(strings.TrimSuffix(z.dir, "/*")))
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("house.go speaks of %s, which is no directory: rename it there too", z.dir)
		}
	}
}

// Each directory of testdata is a small repository that crosses walls; want.txt lists where.
func TestCheckFindsViolations(t *testing.T) {
	cases, err := filepath.Glob("testdata/*")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}

	for _, dir := range cases {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			found, err := Check(dir)
			if err != nil {
				t.Fatal(err)
			}

			var got strings.Builder
			for _, v := range found {
				got.WriteString(v.String() + "\n")
			}

			golden := filepath.Join(dir, "want.txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}

			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}

			if got.String() != string(want) {
				t.Errorf("violations differ from %s\ngot:\n%s\nwant:\n%s", golden, got.String(), want)
			}
		})
	}
}

// Every wall of the house is crossed somewhere in testdata, so that none is there for show.
func TestEveryRuleIsTested(t *testing.T) {
	var all strings.Builder

	goldens, err := filepath.Glob("testdata/*/want.txt")
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range goldens {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}

	for _, z := range house {
		if !strings.Contains(all.String(), z.rule) {
			t.Errorf("no case in testdata violates: %s", z.rule)
		}

		for _, b := range z.bans {
			if !strings.Contains(all.String(), b.what) {
				t.Errorf("no case in testdata imports %s", b.what)
			}
		}
	}
}

func TestCheckReportsUnreadableSource(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken.go"), []byte("pakkage x"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := Check(dir); err == nil {
		t.Fatal("Check says nothing of a file that it cannot parse")
	}
}
