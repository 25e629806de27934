// Package walls checks the import rules of this repository, and that every package has a package comment.
//
// The table in house.go specifies the rules. The check reads only import clauses and package comments, so it is fast
// and works on code that does not compile.
package walls

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Violation is a violation of a rule. Its text contains the location, the problem, and the rule.
type Violation struct {
	File    string // slash-separated, from the root of the repository
	Line    int
	Problem string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s:%d: %s", v.File, v.Line, v.Problem)
}

// file contains the properties of a source file that the rules need.
type file struct {
	name    string // slash-separated, from the root
	test    bool   // a test, or in a package for tests: see helpsTests
	pkg     string
	doc     string
	line    int // of the package clause
	imports []imported
}

type imported struct {
	path string
	line int
}

// Check reads all Go files of a repository and returns all violations, sorted by file and line. It returns an error if
// a file cannot be read.
func Check(repository fs.FS) ([]Violation, error) {
	files, err := read(repository)
	if err != nil {
		return nil, err
	}

	var found []Violation
	for _, f := range files {
		found = append(found, checkImports(f)...)
	}

	found = append(found, checkDocs(files)...)
	slices.SortStableFunc(found, func(a, b Violation) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})

	return found, nil
}

// read parses all Go files of a repository, except those that the go command ignores.
func read(repository fs.FS) ([]file, error) {
	var files []file

	set := token.NewFileSet()

	err := fs.WalkDir(repository, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && invisible(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}

		source, err := fs.ReadFile(repository, name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		parsed, err := parser.ParseFile(set, name, source, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}

		files = append(files, describe(set, parsed, name))

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the source: %w", err)
	}

	return files, nil
}

func invisible(dir string) bool {
	return dir == "testdata" || dir == "vendor" || strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

func describe(set *token.FileSet, parsed *ast.File, name string) file {
	f := file{
		name: name,
		test: strings.HasSuffix(name, "_test.go") || helpsTests(path.Base(path.Dir(name))),
		pkg:  parsed.Name.Name,
		doc:  parsed.Doc.Text(),
		line: set.Position(parsed.Package).Line,
	}
	for _, spec := range parsed.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value) // the parser has accepted it
		f.imports = append(f.imports, imported{importPath, set.Position(spec.Pos()).Line})
	}

	return f
}

// helpsTests reports whether a package exists for tests, by its name: shardtest, testenv.
func helpsTests(pkg string) bool {
	return strings.HasPrefix(pkg, "test") || strings.HasSuffix(pkg, "test")
}

// checkDocs finds packages without a package comment, except test packages.
func checkDocs(files []file) []Violation {
	documented := map[string]bool{}
	first := map[string]file{}

	for _, f := range files {
		if strings.HasSuffix(f.name, "_test.go") {
			continue
		}

		dir := path.Dir(f.name)
		if _, seen := first[dir]; !seen {
			first[dir] = f
		}

		documented[dir] = documented[dir] || strings.HasPrefix(f.doc, opening(f))
	}

	var found []Violation

	for dir, f := range first {
		if !documented[dir] {
			found = append(found, Violation{f.name, f.line, fmt.Sprintf(
				"package %s has no package comment: one of its files must begin with %q",
				f.pkg, "// "+opening(f))})
		}
	}

	return found
}

// opening returns the required beginning of a package comment.
func opening(f file) string {
	if f.pkg == "main" {
		return "Command " + path.Base(path.Dir(f.name)) + " "
	}

	return "Package " + f.pkg + " "
}
