package outside_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runtimes are the versions of controller-runtime that pkg/shard supports: the last of each minor version. That of
// pkg/go.mod is the newest.
var runtimes = []string{"v0.24.1", "v0.25.2"}

// pkg/shard finds the fields of a controller by reflection, and relies on the context of Start being that of
// reconciles. Its own tests run with the newest version; this is what they would rely on with the others.
func TestControllersAreWhereShardLooksForThem(t *testing.T) {
	for _, r := range parse(t, "pkg").Require {
		if r.Mod.Path == "sigs.k8s.io/controller-runtime" {
			require.Equal(t, r.Mod.Version, runtimes[len(runtimes)-1], "the newest version is that of pkg/go.mod")
		}
	}

	for _, v := range runtimes {
		t.Run(v, func(t *testing.T) {
			file := filepath.Join(downloaded(t, "sigs.k8s.io/controller-runtime@"+v), "pkg", "internal", "controller",
				"controller.go")
			source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			require.NoError(t, err)

			fields, start := map[string]string{}, ""

			ast.Inspect(source, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if of, ok := n.Type.(*ast.StructType); ok && n.Name.Name == "Controller" {
						for _, f := range of.Fields.List {
							for _, name := range f.Names {
								fields[name.Name] = text(t, f.Type)
							}
						}
					}
				case *ast.FuncDecl:
					if n.Name.Name == "Start" {
						start = text(t, n)
					}
				}

				return true
			})

			require.Equal(t, "string", fields["Name"])
			require.Equal(t, "reconcile.TypedReconciler[request]", fields["Do"])
			require.Equal(t, "func(request *request) logr.Logger", fields["LogConstructor"])
			require.Equal(t, "time.Duration", fields["CacheSyncTimeout"])
			require.Equal(t, "*bool", fields["EnableWarmup"])
			require.Equal(t, "[]source.TypedSource[request]", fields["startWatches"])
			require.Contains(t, start, "Start(ctx context.Context) error")
			require.Contains(t, start, "c.processNextWorkItem(ctx)")
		})
	}
}

// text returns the source of a part of a file.
func text(t *testing.T, n ast.Node) string {
	t.Helper()

	var b strings.Builder

	require.NoError(t, printer.Fprint(&b, token.NewFileSet(), n))

	return b.String()
}

// downloaded returns the directory of a module.
func downloaded(t *testing.T, module string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	require.NoError(t, err, module)

	var found struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &found))

	return found.Dir
}
