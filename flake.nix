{
  description = "Lodger serves LLMs as a good guest on shared GPU servers";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      # aarch64-darwin is for an operator's laptop: every task works there but the lab's, which say that they need Linux.
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "aarch64-darwin"
      ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make system nixpkgs.legacyPackages.${system});

      inherit (nixpkgs.lib) optionalAttrs optionals;
      version = (builtins.fromTOML (builtins.readFile ./pyproject.toml)).project.version;
      packages = import ./nix/python.nix;
      python = pkgs: names: pkgs.python3.withPackages (modules: map (name: modules.${name}) names);

      # Besides Python: what any task calls.
      programs = pkgs: [
        pkgs.gitMinimal
        pkgs.openssh
      ];

      # What tasks and tests need, with nothing left to a virtual environment.
      development =
        pkgs:
        programs pkgs
        ++ map (name: pkgs.${name}) packages.programs
        ++ [ (python pkgs (packages.runtime ++ packages.development ++ packages.brought ++ packages.lab)) ]
        ++ optionals pkgs.stdenv.isLinux [ pkgs.util-linux ]; # flock, which unit tests call as a host would

      # What the lab calls.
      lab =
        pkgs:
        optionals pkgs.stdenv.isLinux [
          pkgs.debootstrap
          pkgs.docker
          pkgs.iproute2
        ];

      # The checkout's own layout, kept: code finds templates, runbooks and witnesses beside itself.
      tree =
        pkgs:
        pkgs.runCommand "lodger-tree-${version}" { } ''
          mkdir -p $out/tests
          cd ${self}
          cp -r bench hosts lab lodger runbooks templates tasks.py LICENSE README.md README-ops.md $out/
          cp -r tests/host $out/tests/
        '';

      # -P: the folder it is called in is worked on, but no code is taken from it.
      lodger =
        pkgs:
        pkgs.writeShellApplication {
          name = "lodger";
          runtimeInputs = programs pkgs ++ [ (python pkgs (packages.runtime ++ packages.lab)) ];
          text = ''
            export LODGER_CHECKOUT="''${LODGER_CHECKOUT:-$PWD}"
            export PYTHONPATH=${tree pkgs}
            exec python3 -P -m lodger "$@"
          '';
        };

      test =
        pkgs:
        pkgs.writeShellApplication {
          name = "lodger-test";
          runtimeInputs = development pkgs;
          text = ''exec invoke test "$@"'';
        };

      format =
        pkgs:
        pkgs.writeShellApplication {
          name = "lodger-format";
          runtimeInputs = [
            pkgs.nixfmt
            pkgs.ruff
          ];
          text = ''
            nixfmt flake.nix nix/*.nix tests/packaging/nixpkgs/*.nix
            ruff format .
          '';
        };

      app = package: name: description: {
        type = "app";
        program = "${package}/bin/${name}";
        meta = { inherit description; };
      };

      check =
        pkgs: name: script:
        pkgs.runCommand "lodger-${name}" { nativeBuildInputs = development pkgs; } ''
          cp -r ${self} checkout
          chmod -R u+w checkout
          cd checkout
          export HOME=$PWD
          ${script}
          touch $out
        '';
    in
    {
      packages = forEach (system: pkgs: { default = lodger pkgs; });

      apps = forEach (
        system: pkgs: {
          default = app (lodger pkgs) "lodger" "Any task: nix run . -- deploy --host node1";
          test = app (test pkgs) "lodger-test" "Everything that CI runs, on the checkout it is called in";
        }
      );

      devShells = forEach (
        system: pkgs: {
          default = pkgs.mkShell {
            packages =
              development pkgs
              ++ [
                pkgs.actionlint
                pkgs.shellcheck
              ]
              ++ lab pkgs;
          };
        }
      );

      checks = forEach (
        system: pkgs: {
          lint = check pkgs "lint" "ruff check . && ruff format --check . && lint-imports";
          types = check pkgs "types" "mypy";
          golden = check pkgs "golden" "python3 -m pytest -p no:cacheprovider tests/golden";
          package = check pkgs "package" "${lodger pkgs}/bin/lodger --list";
        }
        # What runs on a host is Linux's shell, and is tried where there is one.
        // optionalAttrs pkgs.stdenv.isLinux {
          unit = check pkgs "unit" "python3 -m pytest -p no:cacheprovider tests/unit";
        }
      );

      formatter = forEach (system: pkgs: format pkgs);
    };
}
