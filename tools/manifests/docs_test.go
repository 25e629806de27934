package manifests_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the generated parts of docs")

// TestFlagsAreDocumented compares the tables in docs/installation.md with what each service says itself.
func TestFlagsAreDocumented(t *testing.T) {
	replaceBlock(t, "docs/installation.md", "flags", tables(t))
}

// flagLine matches a flag in the output of --help.
var flagLine = regexp.MustCompile(`(?m)^ +(?:-\w, )?(--\S+(?: \S+)?) {2,}(\S.*?)(?: \(default "?(.*?)"?\))?$`)

// tables returns one table for each service, with what all have, and what the leaders have, in tables of their own.
func tables(t *testing.T) string {
	t.Helper()

	services := []string{"leasemonitor", "assigner", "rebalancer", "ringquery"}

	has, all := map[string][]string{}, map[string]int{}

	for _, service := range services {
		_, list, _ := strings.Cut(help(t, service), "\nFlags:\n")
		for _, m := range flagLine.FindAllStringSubmatch(list, -1) {
			if m[1] == "--help" || m[1] == "--version" {
				continue
			}

			row := "| `" + m[1] + "` | `" + m[3] + "` | " + strings.ReplaceAll(m[2], "|", "\\|") + " |\n"
			row = strings.Replace(row, "| `` |", "|  |", 1) // it has no default
			has[service] = append(has[service], row)
			all[row]++
		}
		require.NotEmpty(t, has[service])
	}
	// All four share some flags, and those with a leader some more.
	every, leaders := len(services), len(services)-1
	pick := func(service string, shown func(shared int) bool) string {
		return "| flag | default | what it is |\n|---|---|---|\n" + strings.Join(slices.DeleteFunc(
			slices.Clone(has[service]), func(row string) bool { return !shown(all[row]) }), "")
	}

	var b strings.Builder
	b.WriteString("### Every service\n\n" + pick(services[0], func(shared int) bool { return shared == every }))
	b.WriteString("\n### leasemonitor, assigner and rebalancer\n\nOf these, one replica leads.\n\n" +
		pick(services[0], func(shared int) bool { return shared == leaders }))

	for _, service := range services {
		b.WriteString("\n### " + service + "\n\n" + pick(service, func(shared int) bool { return shared < leaders }))
	}

	return b.String()
}

var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
	testName = regexp.MustCompile(`^(?:(\w+)\.)?((?:Test|Fuzz)\w*)((?:/\w+)*)$`)
)

// TestProofs compares docs/proofs.md with docs/proofs.txt, and with the tests that there are.
func TestProofs(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "docs/proofs.txt"))
	require.NoError(t, err)

	rows, problems := proofs(string(source), os.DirFS(root))
	require.Empty(t, problems)
	replaceBlock(t, "docs/proofs.md", "proofs", rows)
}

// replaceBlock compares what stands between two marks of a page with what belongs there, or writes it with -update.
func replaceBlock(t *testing.T, page, mark, want string) {
	t.Helper()

	file := filepath.Join(root, page)
	content, err := os.ReadFile(file) //nolint:gosec // a page of the repository
	require.NoError(t, err)

	begin, end := "<!-- "+mark+" -->\n", "<!-- end of "+mark+" -->\n"
	before, rest, ok := strings.Cut(string(content), begin)
	require.True(t, ok, "%s has no mark %s", page, begin)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no mark %s", page, end)

	want = before + begin + want + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // a page of documentation
		return
	}
	require.Equal(t, want, string(content), "%s: go test -C tools/manifests -run %s -update", page, t.Name())
}

// proofs renders the promises of a source as tables with links to their tests, and returns what is wrong with it. A
// promise is a line, with "by " and what guards it in the next one, or none. Its tests follow, each in a line with a
// tab: package.Test, or Test if only one file has a test of that name. "! " begins a remark.
func proofs(source string, repository fs.FS) (tables string, problems []string) {
	files, err := testFiles(repository)
	if err != nil {
		return "", []string{err.Error()}
	}

	var b strings.Builder

	headed := false

	for block := range strings.SplitSeq(strings.TrimSpace(source), "\n\n") {
		if strings.HasPrefix(block, "## ") {
			headed = false
			fmt.Fprintf(&b, "\n%s\n\n", block)

			continue
		}

		var cells, tests []string

		for line := range strings.SplitSeq(block, "\n") {
			if name, ok := strings.CutPrefix(line, "\t"); ok {
				link, err := linkTo(name, files, repository)
				if err != nil {
					problems = append(problems, err.Error())
				}

				tests = append(tests, link)
			} else {
				cells = append(cells, strings.TrimPrefix(line, "by "))
			}
		}

		if len(tests) == 0 || len(cells) > 2 {
			problems = append(problems, "not a promise, what guards it, and tests: "+block)
		}

		switch {
		case headed:
		case len(cells) == 1:
			b.WriteString("| promise | tests |\n|---|---|\n")
		default:
			b.WriteString("| promise | guarded by | tests |\n|---|---|---|\n")
		}

		headed = true

		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(cells, " | "), strings.Join(tests, ", "))
	}

	return strings.TrimPrefix(b.String(), "\n"), problems
}

// testFiles returns the files that have a test, by its name.
func testFiles(repository fs.FS) (map[string][]string, error) {
	files := map[string][]string{}

	err := fs.WalkDir(repository, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(d.Name()) > 1 && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}

		content, err := fs.ReadFile(repository, file)
		for _, m := range testFunc.FindAllStringSubmatch(string(content), -1) {
			files[m[1]] = append(files[m[1]], file)
		}

		return err
	})

	return files, err
}

// linkTo returns a link to a test by its name, or a remark.
func linkTo(name string, files map[string][]string, repository fs.FS) (string, error) {
	if remark, ok := strings.CutPrefix(name, "! "); ok {
		return remark, nil
	}

	m := testName.FindStringSubmatch(name)
	if m == nil {
		return "", fmt.Errorf("%s is no name of a test", name)
	}

	found := slices.DeleteFunc(slices.Clone(files[m[2]]), func(file string) bool {
		return m[1] != "" && path.Base(path.Dir(file)) != m[1]
	})
	if len(found) != 1 {
		return "", fmt.Errorf("%s: name one test, not %d: %s", name, len(found), strings.Join(files[m[2]], ", "))
	}

	content, err := fs.ReadFile(repository, found[0])
	if err != nil {
		return "", err
	}

	for scenario := range strings.SplitSeq(strings.TrimPrefix(m[3], "/"), "/") {
		if scenario != "" && !strings.Contains(string(content), `t.Run("`+scenario+`"`) {
			return "", fmt.Errorf("%s: %s has no %s", name, found[0], scenario)
		}
	}

	return "[" + m[2] + m[3] + "](../" + found[0] + ")", nil
}

// aroundLines makes the lines of README.md a program.
const aroundLines = `package main

import (
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

func main() {
	config := ctrl.GetConfigOrDie()
	%s
	_, _ = mgr, err
}
`

// TestFrontPageIsMeasured: the figures of README.md are those of other pages.
func TestFrontPageIsMeasured(t *testing.T) {
	pages := ""

	for _, page := range []string{"README.md", "docs/performance.md", "docs/when-to-shard.md"} {
		content, err := os.ReadFile(filepath.Join(root, page)) //nolint:gosec // a page of the repository
		require.NoError(t, err)

		pages += string(content) + "\f"
	}

	front, others, _ := strings.Cut(pages, "\f")
	_, costs, _ := strings.Cut(front, "\n## What it costs\n")
	costs, _, _ = strings.Cut(costs, "\n## ")

	figures := regexp.MustCompile(`\d[\d.]* (?:ms|s|MiB)\b`).FindAllString(costs, -1)
	require.Len(t, figures, 9)

	for _, figure := range figures {
		assert.True(t, strings.Contains(others, figure), "README.md has %s, and no other page", figure) //nolint:testifylint // pages are long
	}
}

// TestProgramsOfDocsCompile: everyone who copies the lines of README.md, or a whole program from
// docs/sharding-your-controller.md, gets a program that compiles.
func TestProgramsOfDocsCompile(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "docs/sharding-your-controller.md"))
	require.NoError(t, err)

	programs := fenced(string(content), "go")
	require.NotEmpty(t, programs)

	front, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)

	for _, lines := range fenced(string(front), "go") {
		program, err := format.Source([]byte(fmt.Sprintf(aroundLines, lines)))
		require.NoError(t, err)

		programs = append(programs, string(program))
	}

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
