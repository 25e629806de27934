package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
)

// k9sPlugin has the fields that the README of k9s documents.
type k9sPlugin struct {
	ShortCut        string   `json:"shortCut"`
	Override        bool     `json:"override"`
	Description     string   `json:"description"`
	Scopes          []string `json:"scopes"`
	Command         string   `json:"command"`
	Background      bool     `json:"background"`
	Confirm         bool     `json:"confirm"`
	Dangerous       bool     `json:"dangerous"`
	OverwriteOutput bool     `json:"overwriteOutput"`
	Args            []string `json:"args"`
}

// k9sValues are the values of a selected ConfigMap, and of a ring, by the names that k9s documents.
var k9sValues = map[string]string{
	"RESOURCE_GROUP": "", "RESOURCE_VERSION": "v1", "RESOURCE_NAME": "configmaps", "NAMESPACE": "team-a", "NAME": "page",
	"CONTEXT": "kind", "KUBECONFIG": "/a:/b",
}

// k9sVariable is how k9s finds variables in arguments.
var k9sVariable = regexp.MustCompile(`\$!?[\w-]+`)

// TestShortcutsOfK9sAreCommands: k9s accepts plugins/k9s/plugins.yaml, and this program accepts what k9s then calls.
func TestShortcutsOfK9sAreCommands(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "plugins", "k9s", "plugins.yaml"))
	require.NoError(t, err)

	var file struct {
		Plugins map[string]k9sPlugin `json:"plugins"`
	}

	content, err = yaml.YAMLToJSONStrict(content)
	require.NoError(t, err)
	unknown, err := kjson.UnmarshalStrict(content, &file)
	require.NoError(t, err)
	require.Empty(t, unknown)
	require.NotEmpty(t, file.Plugins)

	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "queries.md"))
	require.NoError(t, err)

	called := map[string]bool{}
	shortcuts := map[string]string{}

	for name, plugin := range file.Plugins {
		require.Regexp(t, `^(Shift-[A-Z]|Ctrl-[A-Z])$`, plugin.ShortCut, name)
		require.Empty(t, shortcuts[plugin.ShortCut], "%s has the shortcut of %s", shortcuts[plugin.ShortCut], name)
		require.Contains(t, string(page), "\n| "+plugin.ShortCut+" | ", name)
		require.NotEmpty(t, plugin.Description, name)
		require.NotEmpty(t, plugin.Scopes, name)

		shortcuts[plugin.ShortCut] = name

		for i, arg := range plugin.Args {
			plugin.Args[i] = k9sVariable.ReplaceAllStringFunc(arg, func(variable string) string {
				value, known := k9sValues[variable[1:]]
				require.True(t, known, "%s: k9s knows no %s", name, variable)

				return value
			})
		}

		require.Equal(t, "env", plugin.Command, name)
		require.Equal(t, []string{"KUBECONFIG=/a:/b", "sh", "-c", `kubectl ring "$@" 2>&1 | less -K`, "sh"}, plugin.Args[:5],
			name)

		root := command.Root(command.Streams{Getenv: os.Getenv, Clock: clock.RealClock{}})
		cmd, rest, err := root.Find(plugin.Args[5:])
		require.NoError(t, err, name)
		require.NotSame(t, root, cmd, name)
		require.NoError(t, cmd.ParseFlags(rest), name)
		require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), name)
		require.Equal(t, "kind", cmd.Flag("context").Value.String(), name)

		called[cmd.Name()] = true

		if cmd.Name() == "explain" {
			objects, err := kinds.Parse(cmd.Flags().Args())
			require.NoError(t, err)
			require.Equal(t, []kinds.Object{{Type: "configmaps.v1.", Name: "page"}}, objects)
			require.Equal(t, []string{"all"}, plugin.Scopes)
			require.Equal(t, "team-a", cmd.Flag("namespace").Value.String())
		} else {
			require.Equal(t, []string{"page"}, cmd.Flags().Args(), name)
			require.Equal(t, []string{"clusterrings"}, plugin.Scopes, name)
		}
	}

	require.Equal(t, map[string]bool{"explain": true, "get": true, "assignments": true}, called)
}
