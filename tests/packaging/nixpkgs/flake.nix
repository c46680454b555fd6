# A stand-in for nixpkgs, for evaluating flake.nix with no network: the attributes that it may use, and nothing else.
# Each is known to be in the pinned revision. Programs are those of the machine that runs the test (machine.nix, which the
# test writes), so that what is built here can be run here.
{
  outputs =
    { self }:
    let
      machine = import ./machine.nix;
      genAttrs = names: make: builtins.listToAttrs (map (name: { inherit name; value = make name; }) names);

      modules = [
        "annotated-types" "bcrypt" "certifi" "cffi" "charset-normalizer" "click" "cryptography" "decorator" "deprecated" "execnet" "fabric" "grimp"
        "hypothesis" "idna" "iniconfig" "invoke" "jinja2" "librt" "markdown-it-py" "markupsafe"
        "mdurl" "mypy" "mypy-extensions" "packaging" "paramiko" "pathspec" "pip" "pluggy" "pycparser" "pydantic"
        "pydantic-core" "pygments" "pynacl" "pytest" "pytest-testinfra" "pytest-xdist" "pyyaml" "requests" "rich" "ruamel-yaml"
        "sortedcontainers" "types-paramiko" "types-pyyaml" "types-requests" "typing-extensions" "typing-inspection" "urllib3" "wrapt"
      ];

      # Attribute -> the programs that come with it.
      programs = {
        actionlint = [ "actionlint" ];
        debootstrap = [ "debootstrap" ];
        docker = [ "dockerd" "docker" ];
        gitMinimal = [ "git" ];
        import-linter = [ "lint-imports" ];
        iproute2 = [ "ip" ];
        nixfmt = [ "nixfmt" ];
        openssh = [ "ssh" "ssh-keygen" ];
        ruff = [ "ruff" ];
        shellcheck = [ "shellcheck" ];
        util-linux = [ "flock" ];
      };

      # Nix kills a builder whose output has ended, and takes one that was still on its way out for a failure. So somebody
      # else holds the output open until the builder has exited.
      lastWord = "trap 'while grep -qs ^State:.[^Z] /proc/$$/status; do :; done &' EXIT\n";

      packagesOf =
        system:
        let
          bin = packages: builtins.concatStringsSep ":" (map (package: "${package}/bin") packages ++ [ machine.path ]);
          built =
            name: attributes: script:
            derivation (
              {
                inherit name system;
                builder = machine.bash;
                args = [ "-euc" (lastWord + script) ];
                PATH = machine.path;
              }
              // attributes
            );
          program =
            name: commands:
            built name { pname = name; } ''
              mkdir -p $out/bin
              for command in ${toString commands}; do
                if found=$(PATH=${machine.bin}:$PATH command -v $command); then ln -s "$found" $out/bin/; fi
              done
            '';
        in
        builtins.mapAttrs program programs
        // {
          stdenv.isLinux = builtins.match ".*-linux" system != null;

          # The interpreter and the packages of the virtual environment, without the checkout that it also has on its path.
          python3.withPackages =
            choose:
            built "python" { modules = map (module: module.pname) (choose (genAttrs modules (pname: { inherit pname; }))); } ''
              mkdir -p $out/bin
              for command in invoke mypy pytest; do ln -s ${machine.bin}/$command $out/bin/; done
              echo '#!${machine.bash}' > $out/bin/python3
              echo 'export PYTHONPATH=''${PYTHONPATH:+$PYTHONPATH:}${machine.site}' >> $out/bin/python3
              echo 'exec ${machine.python} "$@"' >> $out/bin/python3
              chmod +x $out/bin/python3
            '';

          runCommand =
            name: attributes: script:
            built name (attributes // { PATH = bin (attributes.nativeBuildInputs or [ ]); }) script;

          writeShellApplication =
            { name, runtimeInputs, text }:
            built name { inherit text; } ''
              mkdir -p $out/bin
              printf '#!%s -eu\nexport PATH=%s\n%s\n' ${machine.bash} '${bin runtimeInputs}' "$text" > $out/bin/${name}
              chmod +x $out/bin/${name}
            '';

          # nix develop looks for the names of outputs in the environment.
          mkShell = { packages }: built "shell" { inherit packages; outputs = [ "out" ]; PATH = bin packages; } "touch $out";
        };
    in
    {
      lib = {
        inherit genAttrs;
        optionalAttrs = condition: set: if condition then set else { };
        optionals = condition: list: if condition then list else [ ];
      };
      legacyPackages = genAttrs [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" ] packagesOf;
    };
}
