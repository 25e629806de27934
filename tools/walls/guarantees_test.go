package walls

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// link finds [TestName](../path_test.go) and [TestName/Scenario](../path_test.go).
var link = regexp.MustCompile(`\[((?:Test|Fuzz)\w+)((?:/\w+)*)\]\(\.\./([^)]+_test\.go)\)`)

// Every line of the tables in docs/guarantees.md names tests, and every test that it names exists.
func TestGuaranteesNameTestsThatExist(t *testing.T) {
	root := filepath.Join("..", "..")

	doc, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}

	for _, problem := range missingTests(root, string(doc)) {
		t.Error(problem)
	}
}

func TestMissingTestsAreFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package a\n\nfunc TestThere(t *testing.T) { t.Run(\"Scenario\", f) }\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	doc := strings.Join([]string{
		"| promise | guarded by | tests |",
		"|---|---|---|",
		"| good | x | [TestThere](../a_test.go) |",
		"| a scenario | x | [TestThere/Scenario](../a_test.go) |",
		"| no such scenario | x | [TestThere/Nothing](../a_test.go) |",
		"| no such test | x | [TestThe](../a_test.go) |",
		"| no such file | x | [TestThere](../b_test.go) |",
		"| no test | x | none |",
	}, "\n")

	problems := missingTests(dir, doc)
	if len(problems) != 4 {
		t.Fatalf("want four problems, got %q", problems)
	}
}

// missingTests returns what is wrong with the tables of a document.
func missingTests(root, doc string) []string {
	var problems []string

	for line := range strings.Lines(doc) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") || strings.Contains(line, "| guarded by |") {
			continue
		}

		links := link.FindAllStringSubmatch(line, -1)
		if len(links) == 0 {
			problems = append(problems, "no test is named: "+strings.TrimSpace(line))
		}

		for _, l := range links {
			source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(l[3])))
			if err != nil || !hasTest(string(source), l[1], l[2]) {
				problems = append(problems, "no "+l[1]+l[2]+" in "+l[3])
			}
		}
	}

	return problems
}

// hasTest says whether a file has the test, and runs each of the scenarios (such as /Removal, or none) by its name.
func hasTest(source, test, scenarios string) bool {
	for name := range strings.SplitSeq(scenarios, "/") {
		if name != "" && !strings.Contains(source, `t.Run("`+name+`"`) {
			return false
		}
	}

	return strings.Contains(source, "func "+test+"(")
}
