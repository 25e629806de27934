package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/setup"
)

const initLong = `Print what an operator needs to become sharded. Nothing is changed.

The objects are on standard output, for kubectl apply: the ClusterRing, the permissions of the services, those that the shards need in
addition to what the operator has, and a FlowSchema for their Leases. On standard error are the lines of Go to change, and a patch of the
Deployment, with which its Pods replace one another without a pause. docs/sharding-your-controller.md explains all of them.

Objects of --resource are assigned by their own names, and those of --controlled follow their controller. If controlled objects control
others, write the chain, as in replicasets.apps:pods: the assigner may then get the former, to find the main object. The resources have to
exist in the cluster, unless there is no kubeconfig or --offline is set. Then, write plural names with their groups.

Without --slots, shards may get the Deployment, and get and patch pods in the namespace: use --slots if others run there, too, because an
account that may patch a pod can run other code in it. With --fence, the API server warns of writes of a shard to objects of other shards.
After some days without warnings, set spec.fence.mode of the ring to Enforce.`

const initExample = `  # see all, then apply it
  kubectl ring init --resource websites.example.org --controlled configmaps -n ops --service-account operator --slots 3 --fence
  kubectl ring init --resource websites.example.org --controlled configmaps -n ops --service-account operator | kubectl apply -f -

  # a component for the kustomization that has the Deployment; one with a namePrefix would rename the ring, so it comes above this one
  kubectl ring init --resource websites.example.org -n ops --service-account operator >sharded/ring.yaml
  kubectl ring init --resource websites.example.org -n ops --service-account operator -o kustomize >sharded/kustomization.yaml`

func (a *app) initRing() *cobra.Command {
	const asKustomize = "kustomize"

	o, formats := &setup.Operator{}, []string{asYAML, asKustomize}
	format, offline := asYAML, false

	var mains, controlled []string

	cmd := &cobra.Command{
		Use:   "init [RING] --resource RESOURCE [--controlled RESOURCE] -n NAMESPACE --service-account NAME [flags]",
		Short: "Print what an operator needs to become sharded: its ring, permissions, patch, and code",
		Long:  initLong, Example: initExample,
		Args: arguments(0, 1), ValidArgsFunction: cobra.NoFileCompletions,
		// This replaces the hook of the root: the variables are about ringquery, and one would set --service-account.
		PersistentPreRunE: func(*cobra.Command, []string) error { return oneOf("--output", format, formats) },
		RunE: func(_ *cobra.Command, args []string) error {
			if len(mains) == 0 || o.ServiceAccount == "" {
				return failure.New("see kubectl ring init --help", "set --resource and --service-account")
			}

			mapper, err := a.mapper()
			if offline {
				mapper, err = nil, nil
			}

			if err == nil {
				err = o.Resolve(mapper, mains, controlled)
			}

			if err == nil {
				o.Namespace, err = a.namespace()
			}

			if err != nil {
				return err
			}

			o.Ring = cmp.Or(strings.Join(args, ""), o.Resources[0].Resource)
			o.Deployment = cmp.Or(o.Deployment, o.ServiceAccount)

			if err := o.Validate(); err != nil {
				return err
			}

			return a.printSetup(o, format == asKustomize)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&mains, "resource", nil, "main `resource` of the controller; RING is by default that of the first")
	flags.StringSliceVar(&controlled, "controlled", nil, "`resource` whose objects follow their controller, or a chain")
	flags.StringVar(&o.ServiceAccount, "service-account", "", "`name` of the service account of the shards")
	flags.StringVar(&o.Deployment, "deployment", "", "`name` of the Deployment; by default, that of the service account")
	flags.StringVar(&o.Container, "container", "manager", "`name` of the container of the controller")
	flags.IntVar(&o.Slots, "slots", 0, "`number` of shards; by default, as many as the Deployment has replicas")
	flags.BoolVar(&o.Fence, "fence", false, "report writes of shards to objects of other shards")
	flags.BoolVar(&offline, "offline", false, "do not ask the cluster whether the resources exist")
	flags.VisitAll(func(f *pflag.Flag) { complete(cmd, f.Name, cobra.NoFileCompletions) })
	flags.StringVarP(&format, "output", "o", asYAML, "`format`: "+join(formats))
	complete(cmd, "output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))

	return cmd
}

// printSetup prints the objects, or a component of kustomize, for programs, and the rest for people.
func (a *app) printSetup(o *setup.Operator, component bool) error {
	patch, err := yaml.Marshal(o.Patch())
	if err != nil {
		return fmt.Errorf("write the patch: %w", err)
	}

	objects := o.Objects()
	then := fmt.Sprintf("this patch:\n\nkubectl -n %s patch deployment %s --patch '\n%s'", o.Namespace, o.Deployment, patch)

	if component {
		target := map[string]string{"group": "apps", "kind": "Deployment", "name": o.Deployment}
		then = "this component. Its ring.yaml is the output without -o kustomize."
		objects = []any{map[string]any{
			"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "resources": []string{"ring.yaml"},
			"patches": []any{map[string]any{"target": target, "patch": string(patch)}},
		}}
	}

	for out := (&output{app: a, format: asYAML}); len(objects) > 0; objects = objects[1:] {
		text, err := json.Marshal(objects[0])
		if err == nil {
			err = out.emit(text)
		}

		if err != nil {
			return err
		}
	}

	fmt.Fprintf(a.Err, "Change the main function, after go get github.com/clusterring/clusterring/pkg@latest. "+
		"Packages may have other names:\n\n%s\nThen deploy that image, with %s\nKeep a longer grace period, and remove a readiness "+
		"probe of another type first.\n", o.Code(), then)

	return nil
}
