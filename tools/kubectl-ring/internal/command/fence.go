package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/leaderfence"
)

const fenceLong = `Print an admission policy that fences a leader-elected controller by its own Lease, and the binding of the policy. With it, the API server
refuses writes by replicas that do not hold the Lease, such as a former leader that was frozen and wakes up.

The policy needs Kubernetes 1.30 or later. It needs no service of ClusterRing and no change of the controller. To fence the shards of a
ring, set spec.fence of the ClusterRing instead.

Nothing is sent to a cluster. Begin with --audit, which refuses nothing: the client of the controller logs a warning for each write that
would be refused.

Limits
  - The replicas need tokens that are bound to their Pods, as tokens from the kubelet are.
  - The identity in the Lease must be the name of the Pod, or begin with it and an underscore, as with controller-runtime. Pods with
    hostNetwork use the name of their node instead, so all of their writes are refused.
  - With several API servers, each of them learns of a new holder some milliseconds after the Lease has changed.
  - If an API server cannot read the Lease, it refuses writes to these resources until it can.
  - Writes that a replica had sent before it lost the Lease can still succeed if they are evaluated before. Effects outside of the API
    server are not fenced.`

const fenceExample = `  # which writes would be refused
  kubectl ring fence --lease operators/website-operator --service-account operators/website-operator \
    --resource websites.example.org --resource configmaps --audit | kubectl apply -f -

  # refuse them
  kubectl ring fence --lease operators/website-operator --service-account operators/website-operator \
    --resource websites.example.org --resource configmaps | kubectl apply -f -`

func (a *app) fence() *cobra.Command {
	var (
		lease, format string
		accounts, all []string
		spec          leaderfence.Spec
	)

	cmd := &cobra.Command{
		Use:     "fence --lease NAMESPACE/NAME --service-account NAMESPACE/NAME --resource RESOURCE.GROUP",
		Short:   "Print a policy that lets only the leader of a controller write",
		Long:    fenceLong,
		Example: fenceExample,
		Args:    arguments(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := oneOf("--output", format, []string{asYAML, asJSON}); err != nil {
				return err
			}

			spec.Lease = namespacedName(lease)
			for _, account := range accounts {
				spec.ServiceAccounts = append(spec.ServiceAccounts, namespacedName(account))
			}

			for _, r := range all {
				spec.Resources = append(spec.Resources, schema.ParseGroupResource(r))
			}

			if err := spec.Validate(); err != nil {
				return failure.New("see "+cmd.CommandPath()+" --help", "%w", err)
			}

			policy, binding := leaderfence.Objects(spec)

			return a.manifests(format, policy, binding)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&lease, "lease", "", "Lease of the leader election, as `NAMESPACE/NAME`")
	flags.StringSliceVar(&accounts, "service-account", nil, "service account of the controller, as `NAMESPACE/NAME`; repeat it for several")
	flags.StringSliceVar(&all, "resource", nil, "`resource` that only the leader may write, such as websites.example.org; repeat it for several")
	flags.BoolVar(&spec.Audit, "audit", false, "report writes instead of refusing them")
	flags.StringVarP(&format, "output", "o", asYAML, "`format` of the manifests: yaml or json")
	complete(cmd, "output", cobra.FixedCompletions([]string{asYAML, asJSON}, cobra.ShellCompDirectiveNoFileComp))

	return cmd
}

// namespacedName returns what namespace/name means. Anything else has an invalid part.
func namespacedName(text string) apitypes.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return apitypes.NamespacedName{Namespace: namespace, Name: name}
}

// manifests prints objects for kubectl apply: YAML documents, or a List in JSON.
func (a *app) manifests(format string, objects ...runtime.Object) error {
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}}

	for _, o := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return fmt.Errorf("encode the manifests: %w", err)
		}

		delete(content, "status")
		list.Items = append(list.Items, unstructured.Unstructured{Object: content})
	}

	if format == asJSON {
		return (&printers.JSONPrinter{}).PrintObj(list, a.Out) //nolint:wrapcheck // an error of the output
	}

	yaml := &printers.YAMLPrinter{}

	for i := range list.Items {
		if err := yaml.PrintObj(&list.Items[i], a.Out); err != nil {
			return fmt.Errorf("print the manifests: %w", err)
		}
	}

	return nil
}
